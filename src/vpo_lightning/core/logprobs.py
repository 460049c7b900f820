"""Log-probabilities and entropies of sampled tokens, without holding all logits in float32.

Chunks of positions are projected to the vocabulary, reduced to two numbers per position, and
projected again in the backward pass: memory grows with the chunk and not with B * T * V.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Float32, Int
from torch import Tensor
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

Head = Tensor | Callable[[Tensor], Tensor]


def sampled_logprobs(
    logits: Float[Tensor, "*rows V"], ids: Int[Tensor, "*rows"], temperature: float = 1.0
) -> Float32[Tensor, "*rows"]:
    """Return the log-probability of each sampled token, in nats.

    Args:
        logits: Of the position that predicts the token.
        ids: The sampled tokens.
        temperature: Of sampling; the logits are divided by it, as the engines do.

    Raises:
        ValueError: The temperature is not positive.
    """
    return logprobs_and_entropy(logits, ids, temperature)[0]


def token_entropy(
    logits: Float[Tensor, "*rows V"], temperature: float = 1.0
) -> Float32[Tensor, "*rows"]:
    """Return the entropy of each next-token distribution, in nats.

    Raises:
        ValueError: The temperature is not positive.
    """
    ids = torch.zeros(logits.shape[:-1], dtype=torch.int64, device=logits.device)
    return logprobs_and_entropy(logits, ids, temperature)[1]


def logprobs_and_entropy(
    logits: Float[Tensor, "*rows V"], ids: Int[Tensor, "*rows"], temperature: float = 1.0
) -> tuple[Float32[Tensor, "*rows"], Float32[Tensor, "*rows"]]:
    """Return ``sampled_logprobs`` and ``token_entropy`` of the same logits.

    Raises:
        ValueError: The temperature is not positive.
    """
    if temperature <= 0:
        raise ValueError(
            f"temperature is {temperature}; log-probabilities need a positive one, set "
            "`engine.temperature` (greedy decoding is for evaluation only)"
        )
    logprobs = torch.log_softmax(logits.float() / temperature, dim=-1)
    sampled = logprobs.gather(-1, ids[..., None].long()).squeeze(-1)
    # p log p is 0 for p = 0, where log p may be -inf.
    entropy = -torch.where(logprobs > -torch.inf, logprobs.exp() * logprobs, 0.0).sum(dim=-1)
    return sampled, entropy


def logprobs_from_hidden(
    hidden: Float[Tensor, "*rows H"],
    head: Head,
    ids: Int[Tensor, "*rows"],
    mask: Bool[Tensor, "*rows"] | None = None,
    *,
    temperature: float = 1.0,
    chunk_tokens: int = 1024,
) -> tuple[Float32[Tensor, "*rows"], Float32[Tensor, "*rows"]]:
    """Return log-probabilities and entropies from the last hidden states, chunk by chunk.

    Values and gradients are those of ``logprobs_and_entropy(head(hidden), ids)``; only
    ``chunk_tokens`` rows of logits exist at a time, in the backward pass too, where each chunk is
    computed again. Positions outside the mask are not computed and get 0.

    Args:
        hidden: Hidden states of the positions that predict the tokens.
        head: The (V, H) weight of the language-model head, or the head itself.
        ids: The sampled tokens.
        mask: True for the positions to compute; None for all.
        temperature: Of sampling.
        chunk_tokens: Positions projected at a time.

    Raises:
        ValueError: The temperature or ``chunk_tokens`` is not positive.
    """
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens is {chunk_tokens}; set `model.chunk_tokens` to 1 or more")
    mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
    rows, tokens = hidden[mask], ids[mask]

    def chunk(states: Tensor, sampled: Tensor) -> tuple[Tensor, Tensor]:
        logits = linear(states, head) if isinstance(head, Tensor) else head(states)
        return logprobs_and_entropy(logits, sampled, temperature)

    parts: list[tuple[Tensor, Tensor]] = []
    for first in range(0, max(tokens.shape[0], 1), chunk_tokens):
        states, sampled = (part[first : first + chunk_tokens] for part in (rows, tokens))
        if torch.is_grad_enabled():
            parts.append(
                checkpoint(chunk, states, sampled, use_reentrant=False, preserve_rng_state=False)
            )
        else:
            parts.append(chunk(states, sampled))
    outputs: list[Tensor] = []
    for column in zip(*parts, strict=True):
        values = torch.cat(column)
        full = torch.zeros(ids.shape, dtype=values.dtype, device=values.device)
        outputs.append(full.masked_scatter(mask, values))
    return outputs[0], outputs[1]
