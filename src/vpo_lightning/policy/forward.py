"""Log-probabilities of completions under a policy; a prompt is read once for its completions."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers.cache_utils import Cache, DynamicLayer

from vpo_lightning.core.architecture import logit_changes, partial_attention
from vpo_lightning.core.logprobs import logprobs_from_hidden
from vpo_lightning.core.types import TokenBatch
from vpo_lightning.errors import ConfigError


def completion_logprobs(
    model: nn.Module,
    batch: TokenBatch,
    *,
    temperature: float = 1.0,
    share_prompts: bool = True,
    chunk_tokens: int = 512,
) -> tuple[Float[Tensor, "R T"], Float[Tensor, "R T"]]:
    """Log-probability of each completion token and entropy of its distribution, in nats.

    With `share_prompts` the model reads each prompt once; its keys and values are handed to all its
    completions and gradients flow back through them. Otherwise the model reads a row of prompt and
    completion for each completion. Values and gradients are the same, and do not depend on padding
    or on how a batch is split.

    Args:
        model: A causal language model of transformers (or of peft around one).
        batch: Prompts and completions.
        temperature: Of sampling; the logits are divided by it.
        share_prompts: Read each prompt once. Needs attention over the whole past and no gradient
            checkpointing.
        chunk_tokens: Tokens whose logits exist at one time.

    Returns:
        Log-probabilities and entropies, 0 at padding; float32, or float64 for a float64 model.

    Raises:
        ConfigError: `share_prompts` with a model that cannot; a model that changes its logits after
            the output head.
        ValueError: The temperature is not positive.
    """
    language_model: Any = model
    _refuse_logit_changes(language_model.config)
    if share_prompts and (obstacle := sharing_obstacle(language_model)):
        raise ConfigError(obstacle)
    width = batch.completion_ids.shape[1]
    batch = _trimmed(batch)
    hidden = (_shared_states if share_prompts else _row_states)(language_model.get_decoder(), batch)
    logprobs, entropy = logprobs_from_hidden(
        hidden,
        language_model.get_output_embeddings(),
        batch.completion_ids,
        batch.completion_mask(),
        temperature=temperature,
        chunk_tokens=chunk_tokens,
    )
    missing = (0, width - logprobs.shape[1])
    return pad(logprobs, missing), pad(entropy, missing)


def sharing_obstacle(model: Any) -> str | None:
    """Why `share_prompts` is wrong for a model in its present mode; None if it is right."""
    config = model.config
    kinds = partial_attention(config)
    if kinds:
        return (
            f"ppo.share_prompts=true: the {', '.join(kinds)} layers of a {config.model_type} model "
            f"do not see the whole prompt; set ppo.share_prompts=false"
        )
    if config._attn_implementation not in ("sdpa", "eager"):
        return (
            f"ppo.share_prompts=true with model.attention={config._attn_implementation}: expected "
            f"sdpa or eager; change one of the two"
        )
    if model.training and model.is_gradient_checkpointing:
        return (
            "ppo.share_prompts=true with model.gradient_checkpointing=true: recomputing a prompt's "
            "layers loses the keys and values it lends; set one of the two to false"
        )
    return None


class _PromptLayer(DynamicLayer):
    """Keys and values of one layer: kept for the prompts, lent to their completions.

    Attributes:
        prompt_index: The prompt of each completion; None while the prompts are read.
    """

    prompt_index: Tensor | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if self.prompt_index is None:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states, value_states
            return key_states, value_states
        assert self.keys is not None
        assert self.values is not None
        keys = self.keys.index_select(0, self.prompt_index)
        values = self.values.index_select(0, self.prompt_index)
        return torch.cat((keys, key_states), 2), torch.cat((values, value_states), 2)


def _shared_states(decoder: nn.Module, batch: TokenBatch) -> Float[Tensor, "R T D"]:
    """The hidden state that predicts each completion token; prompts are read once."""
    used, index = batch.prompt_index.unique(return_inverse=True)
    lengths = batch.prompt_lengths[used]
    cache = Cache(layer_class_to_replicate=_PromptLayer)
    # Prompts are padded on the right: no real token sees the padding behind it.
    prompts = decoder(
        input_ids=batch.prompt_ids[used], past_key_values=cache, use_cache=True
    ).last_hidden_state
    first = prompts[torch.arange(len(used), device=used.device), lengths - 1][index][:, None]
    steps = batch.completion_ids.shape[1] - 1
    if steps == 0:
        return first
    for layer in cache.layers:
        layer.prompt_index = index  # type: ignore[union-attr]
    offsets = torch.arange(steps, device=used.device)
    later = decoder(
        input_ids=batch.completion_ids[:, :-1],
        position_ids=lengths[index][:, None] + offsets,
        attention_mask=_completion_mask(lengths[index], prompts.shape[1], steps, first.dtype),
        past_key_values=cache,
        use_cache=True,
    ).last_hidden_state
    return torch.cat((first, later), 1)


def _completion_mask(
    prompt_lengths: Int[Tensor, " R"], width: int, steps: int, dtype: torch.dtype
) -> Float[Tensor, "R 1 steps keys"]:
    """What is added to attention scores: a token sees its whole prompt and the tokens before it."""
    rows, device = prompt_lengths.shape[0], prompt_lengths.device
    seen_prompt = torch.arange(width, device=device) < prompt_lengths[:, None]
    seen_past = torch.ones(steps, steps, dtype=torch.bool, device=device).tril()
    seen = torch.cat(
        (seen_prompt[:, None].expand(rows, steps, width), seen_past.expand(rows, steps, steps)), 2
    )
    hidden = torch.finfo(dtype).min
    return torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, hidden)[:, None]


def _row_states(decoder: nn.Module, batch: TokenBatch) -> Float[Tensor, "R T D"]:
    """The hidden state that predicts each completion token; a row is prompt and completion."""
    lengths = batch.prompt_lengths[batch.prompt_index][:, None]
    steps = torch.arange(batch.completion_ids.shape[1], device=lengths.device)
    rows = pad(batch.prompt_ids[batch.prompt_index], (0, len(steps)))
    rows = rows.scatter(1, lengths + steps, batch.completion_ids)
    longest = int((lengths[:, 0] + batch.completion_lengths).max())
    # Rows are padded on the right, so that positions count from 0 and no mask is needed.
    states = decoder(input_ids=rows[:, :longest], use_cache=False).last_hidden_state
    predicting = (lengths + steps - 1).clamp_max(longest - 1)
    return states.gather(1, predicting[:, :, None].expand(-1, -1, states.shape[2]))


def _trimmed(batch: TokenBatch) -> TokenBatch:
    """The batch without columns that are padding in every row, and 0 for padding elsewhere."""
    tokens = max(1, int(batch.completion_lengths.max()))
    prompt_tokens = int(batch.prompt_lengths.max())
    positions = torch.arange(prompt_tokens, device=batch.prompt_ids.device)
    is_prompt = positions < batch.prompt_lengths[:, None]
    trimmed = TokenBatch(
        prompt_ids=batch.prompt_ids[:, :prompt_tokens] * is_prompt,
        prompt_lengths=batch.prompt_lengths,
        completion_ids=batch.completion_ids[:, :tokens],
        completion_lengths=batch.completion_lengths,
        prompt_index=batch.prompt_index,
    )
    ids = trimmed.completion_ids * trimmed.completion_mask()
    return TokenBatch(
        trimmed.prompt_ids, batch.prompt_lengths, ids, batch.completion_lengths, batch.prompt_index
    )


def _refuse_logit_changes(config: Any) -> None:
    changes = logit_changes(config)
    if changes:
        raise ConfigError(
            f"model.path: a {config.model_type} model changes its logits after the output head "
            f"({', '.join(changes)}), which is not supported; choose a model of another family"
        )
