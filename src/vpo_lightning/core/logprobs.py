"""Log-probabilities and entropies of sampled tokens, without holding all logits in float32.

The reduction from logits to two numbers per position keeps the logits it was given and nothing else
of their size; from hidden states even those exist only for one chunk of positions at a time, in the
forward and in the backward pass.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint  # pyright: ignore[reportUnknownVariableType]

Head = Tensor | Callable[[Tensor], Tensor]

# Logits converted to float32 at a time: 64 MiB.
_BLOCK_ELEMENTS = 1 << 24


def sampled_logprobs(
    logits: Float[Tensor, "*rows V"], ids: Int[Tensor, "*rows"], temperature: float = 1.0
) -> Float[Tensor, "*rows"]:
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
) -> Float[Tensor, "*rows"]:
    """Return the entropy of each next-token distribution, in nats.

    Raises:
        ValueError: The temperature is not positive.
    """
    ids = torch.zeros(logits.shape[:-1], dtype=torch.int64, device=logits.device)
    return logprobs_and_entropy(logits, ids, temperature)[1]


def logprobs_and_entropy(
    logits: Float[Tensor, "*rows V"], ids: Int[Tensor, "*rows"], temperature: float = 1.0
) -> tuple[Float[Tensor, "*rows"], Float[Tensor, "*rows"]]:
    """Return ``sampled_logprobs`` and ``token_entropy`` of the same logits.

    Both are differentiable once, and float32 whatever the precision of the logits (float64 for
    float64). A logit of -inf is a token that cannot be sampled.

    Raises:
        ValueError: The temperature is not positive.
    """
    if temperature <= 0:
        raise ValueError(
            f"temperature is {temperature}; log-probabilities need a positive one, set "
            "`engine.temperature` (greedy decoding is for evaluation only)"
        )
    flat = logits.reshape(-1, logits.shape[-1])
    reduce: Callable[..., tuple[Tensor, Tensor]] = _Reduction.apply  # pyright: ignore
    logprobs, entropy = reduce(flat, ids.reshape(-1).long(), temperature)
    return logprobs.reshape(ids.shape), entropy.reshape(ids.shape)


def logprobs_from_hidden(
    hidden: Float[Tensor, "*rows H"],
    head: Head,
    ids: Int[Tensor, "*rows"],
    mask: Bool[Tensor, "*rows"] | None = None,
    *,
    temperature: float = 1.0,
    chunk_tokens: int = 512,
) -> tuple[Float[Tensor, "*rows"], Float[Tensor, "*rows"]]:
    """Return log-probabilities and entropies from the last hidden states, chunk by chunk.

    Values and gradients are those of ``logprobs_and_entropy(head(hidden), ids)``; only
    ``chunk_tokens`` rows of logits exist at a time, in the backward pass too, where each chunk is
    projected again. Positions outside the mask are not computed and get 0.

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

    def project(states: Tensor, sampled: Tensor) -> tuple[Tensor, Tensor]:
        logits = linear(states, head) if isinstance(head, Tensor) else head(states)
        return logprobs_and_entropy(logits, sampled, temperature)

    parts: list[tuple[Tensor, Tensor]] = []
    for first in range(0, max(len(tokens), 1), chunk_tokens):
        states, sampled = (part[first : first + chunk_tokens] for part in (rows, tokens))
        parts.append(_recomputed(project, states, sampled))
    logprobs, entropy = (torch.cat(column) for column in zip(*parts, strict=True))
    zeros = torch.zeros(ids.shape, dtype=logprobs.dtype, device=logprobs.device)
    return zeros.masked_scatter(mask, logprobs), zeros.masked_scatter(mask, entropy)


def _recomputed(
    function: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], states: Tensor, sampled: Tensor
) -> tuple[Tensor, Tensor]:
    """Return ``function(states, sampled)``, computed again in the backward pass."""
    if not torch.is_grad_enabled():
        return function(states, sampled)
    recompute: Callable[..., tuple[Tensor, Tensor]] = checkpoint  # pyright: ignore
    return recompute(function, states, sampled, use_reentrant=False, preserve_rng_state=False)


class _Reduction(torch.autograd.Function):
    """Log-probability of the sampled token and entropy of each row of logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        normalizer = logits.new_empty(len(ids), dtype=_precision(logits))
        sampled, entropy = torch.empty_like(normalizer), torch.empty_like(normalizer)
        for rows in _blocks(logits):
            scaled = logits[rows].to(normalizer.dtype) / temperature
            normalizer[rows] = scaled.logsumexp(dim=-1)
            sampled[rows] = scaled.gather(-1, ids[rows, None]).squeeze(-1) - normalizer[rows]
            logs = _finite(scaled.sub_(normalizer[rows, None]))
            entropy[rows] = -logs.exp().mul_(logs).sum(dim=-1)
        ctx.save_for_backward(logits, ids, normalizer, entropy)
        ctx.temperature = temperature
        return sampled, entropy

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor, None, None]:
        """Use d logprob / d logit = [sampled] - p, d entropy / d logit = -p (log p + entropy)."""
        logits, ids, normalizer, entropy = ctx.saved_tensors
        sampled_grad, entropy_grad = grads
        result, with_entropy = torch.empty_like(logits), bool(entropy_grad.any())
        for rows in _blocks(logits):
            logs = logits[rows].to(normalizer.dtype) / ctx.temperature
            logs = _finite(logs.sub_(normalizer[rows, None]))
            block = logs.exp()
            if with_entropy:
                slope = logs.add_(entropy[rows, None]).mul_(block).mul_(entropy_grad[rows, None])
                block.mul_(-sampled_grad[rows, None]).sub_(slope)
            else:
                block.mul_(-sampled_grad[rows, None])
            block.scatter_add_(-1, ids[rows, None], sampled_grad[rows, None])
            result[rows] = block.div_(ctx.temperature)
        return result, None, None


def _finite(logs: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
    """Bound log-probabilities of -inf in place, so that p log p is 0 for p = 0."""
    return logs.clamp_min_(torch.finfo(logs.dtype).min / 2)


def _precision(logits: Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def _blocks(logits: Float[Tensor, "R V"]) -> list[slice]:
    rows = max(1, _BLOCK_ELEMENTS // max(1, logits.shape[-1]))
    return [slice(first, first + rows) for first in range(0, len(logits), rows)]
