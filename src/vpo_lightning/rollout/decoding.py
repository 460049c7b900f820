"""The decoding loop on a transformers model: one batch of prompts, all their completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from vpo_lightning.core.seeding import counter_uniform
from vpo_lightning.rollout.decode_cache import DecodeCache, hidden_prompt_padding
from vpo_lightning.rollout.engine import SamplingSettings
from vpo_lightning.rollout.sampling import sample_tokens
from vpo_lightning.rollout.stopping import StopWatch

# Finished rows are dropped once this share of the rows is left; dropping copies the cache.
_DROP_BELOW = 0.85
# Uniform numbers drawn at one time, in tokens.
_UNIFORM_BLOCK = 256
RUNNING, EOS, STOP = 0, 1, 2


@dataclass(frozen=True)
class Sampled:
    """The completions of a batch.

    Attributes:
        ids: Sampled tokens; what stands behind a row's length means nothing.
        logprobs: Of each token, in nats.
        lengths: Tokens of each row.
        reasons: How each row ended: `EOS`, `STOP`, or `RUNNING` if it was cut off.
    """

    ids: Int64[Tensor, "R T"]
    logprobs: Float64[Tensor, "R T"]
    lengths: Int64[Tensor, " R"]
    reasons: Int64[Tensor, " R"]


@dataclass(frozen=True)
class DecodeBatch:
    """What one run of the loop works on.

    Attributes:
        prompts: Token ids of P prompts.
        prompt_index: The prompt of each of R rows.
        seeds: The seed of each row.
        watch: Where rows end beside the end-of-sequence tokens.
        ends: Whether each token of the vocabulary ends a sequence.
    """

    prompts: Sequence[Sequence[int]]
    prompt_index: Int64[Tensor, " R"]
    seeds: Int64[Tensor, " R"]
    watch: StopWatch
    ends: Bool[Tensor, " V"]


@torch.inference_mode()
def decode(model: Any, batch: DecodeBatch, settings: SamplingSettings) -> Sampled:
    """Samples every row of `batch` until it ends or has ``settings.max_tokens`` tokens.

    Each prompt is read once. Token t of a row is drawn with number t of its seed, so rows do not
    depend on each other, nor on which rows are dropped when.
    """
    rows, device = batch.seeds.shape[0], batch.seeds.device
    state = _prefill(model, batch, settings.max_tokens)
    ids = torch.zeros(rows, settings.max_tokens, dtype=torch.int64, device=device)
    logprobs = torch.zeros(ids.shape, dtype=torch.float64, device=device)
    lengths = torch.full((rows,), settings.max_tokens, device=device)
    reasons = torch.full((rows,), RUNNING, device=device)
    alive = torch.arange(rows, device=device)  # the row of each line of the model's batch
    is_alive = torch.ones(rows, dtype=torch.bool, device=device)
    uniforms = torch.empty(0)
    for t in range(settings.max_tokens):
        if t % _UNIFORM_BLOCK == 0:
            count = min(_UNIFORM_BLOCK, settings.max_tokens - t)
            uniforms = counter_uniform(batch.seeds[alive], count, start=t)
        tokens, chances = sample_tokens(state.logits, uniforms[:, t % _UNIFORM_BLOCK], settings)
        ids[alive, t], logprobs[alive, t] = tokens, chances
        is_eos = batch.ends[tokens]
        is_stop = batch.watch.ended(tokens, alive, ids, t + 1)
        ending = is_alive & (is_eos | is_stop)
        ended = alive[ending]
        lengths[ended] = t + 1
        reasons[ended] = torch.where(is_eos[ending], EOS, STOP)
        is_alive &= ~ending
        left = int(is_alive.sum())
        if left == 0 or t + 1 == settings.max_tokens:
            break
        if left <= _DROP_BELOW * len(alive):
            kept = is_alive.nonzero()[:, 0]
            alive, tokens, uniforms = alive[kept], tokens[kept], uniforms[kept]
            is_alive = is_alive[kept]
            state.keep(kept)
        state.step(tokens)
    return Sampled(ids, logprobs, lengths, reasons)


class _State:
    """Cache and next-token logits of the lines that are still computed."""

    def __init__(self, model: Any, cache: DecodeCache, capacity: int) -> None:
        self._decoder = model.get_decoder()
        self._head = model.get_output_embeddings()
        self._cache = cache
        self._capacity = capacity
        self.logits = torch.empty(0)
        self._positions = torch.empty(0)
        self._mask: Tensor | None = None

    def begin(self, logits: Tensor, lengths: Tensor, index: Tensor, width: int) -> None:
        """Gives each row a copy of its prompt."""
        self.logits = logits[index]
        self._positions = lengths[index]
        self._mask = hidden_prompt_padding(self._positions, width, self._capacity, logits.dtype)
        self._cache.spread(index, self._capacity)

    def keep(self, kept: Tensor) -> None:
        """Drops the other lines."""
        self._positions = self._positions[kept]
        self._mask = None if self._mask is None else self._mask[kept]
        self._cache.spread(kept, self._capacity)

    def step(self, tokens: Tensor) -> None:
        """Reads one token of each line."""
        seen = self._cache.get_seq_length() + 1
        hidden = self._decoder(
            input_ids=tokens[:, None],
            position_ids=self._positions[:, None],
            attention_mask=None if self._mask is None else self._mask[..., :seen],
            past_key_values=self._cache,
            use_cache=True,
        ).last_hidden_state
        self.logits = self._head(hidden[:, -1])
        self._positions = self._positions + 1


def _prefill(model: Any, batch: DecodeBatch, max_tokens: int) -> _State:
    """Reads each prompt once; padding on the right, which no real token sees."""
    device = batch.seeds.device
    lengths = torch.tensor([len(prompt) for prompt in batch.prompts], device=device)
    width = max(len(prompt) for prompt in batch.prompts)
    padded = [[*prompt, *[0] * (width - len(prompt))] for prompt in batch.prompts]
    cache = DecodeCache()
    hidden = model.get_decoder()(
        input_ids=torch.tensor(padded, device=device), past_key_values=cache, use_cache=True
    ).last_hidden_state
    last = hidden[torch.arange(len(lengths), device=device), lengths - 1]
    state = _State(model, cache, width + max_tokens)
    state.begin(model.get_output_embeddings()(last), lengths, batch.prompt_index, width)
    return state
