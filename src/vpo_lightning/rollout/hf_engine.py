"""Rollouts from a transformers model in the training process."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from vpo_lightning.core.architecture import (
    compute_norms_in_float64,
    logit_changes,
    partial_attention,
)
from vpo_lightning.errors import ConfigError
from vpo_lightning.rollout.decoding import EOS, STOP, DecodeBatch, Sampled, decode
from vpo_lightning.rollout.engine import (
    Completion,
    GenerationRequest,
    SamplingSettings,
    check_lengths,
)
from vpo_lightning.rollout.expected_weights import ExpectedWeights
from vpo_lightning.rollout.stopping import StopTexts, StopWatch, end_ids

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_Row = tuple[int, int]  # request, sample
_REASONS: dict[int, Literal["eos", "stop", "length"]] = {EOS: "eos", STOP: "stop"}


class HFEngine:
    """A `RolloutEngine` on an own copy of a transformers causal language model.

    The ids of a completion depend on its seed, its prompt and the weights, not on what else is in
    the call, how the call is split, or how many processes share the work (exactly in float64; in
    float32 up to the rounding of matrix products of other shapes).

    Args:
        model_folder: Folder or Hub id of the start policy.
        dtype: Name of a torch dtype.
        device: Where the copy lives.
        batch_tokens: Memory budget, in cached tokens: rows of a batch times (longest prompt plus
            ``max_tokens``). One token takes 2 * layers * kv_heads * head_dim numbers.
        attention: transformers' name of the attention function, ``sdpa`` or ``eager``.
        trust_remote_code: Run the Python code of the model's folder.

    Attributes:
        version: Policy version of the weights in use.
        positions: Longest prompt and completion together that it takes, in tokens: the model's
            positions, or `batch_tokens` where that is less.

    Raises:
        ConfigError: An attention function that cannot mask padded prompts, or a model family that
            the loop does not compute.
    """

    def __init__(
        self,
        model_folder: str | Path,
        *,
        dtype: str = "float32",
        device: str = "cpu",
        batch_tokens: int = 65536,
        attention: str = "sdpa",
        trust_remote_code: bool = False,
    ) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        place = os.path.expanduser(model_folder)
        model = AutoModelForCausalLM.from_pretrained(
            place,
            dtype=getattr(torch, dtype),
            attn_implementation=attention,
            trust_remote_code=trust_remote_code,
        )
        compute_norms_in_float64(model)
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=trust_remote_code)
        self._set_up(model, tokenizer, device, batch_tokens)

    @classmethod
    def from_model(
        cls,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        device: str = "cpu",
        batch_tokens: int = 65536,
    ) -> HFEngine:
        """An engine on a copy of `model`."""
        engine = cls.__new__(cls)
        engine._set_up(copy.deepcopy(model), tokenizer, device, batch_tokens)
        return engine

    def _set_up(self, model: Any, tokenizer: Any, device: str, batch_tokens: int) -> None:
        _refuse(model.config)
        self.version = 0
        self._batch_tokens = batch_tokens
        self._device = torch.device(device)
        self._model: Any = model.to(self._device).eval().requires_grad_(False)
        self._expected = ExpectedWeights(self._model)
        self.positions = min(self._expected.positions, batch_tokens)
        self._texts = StopTexts(tokenizer, self._expected.vocabulary, self._device)
        self._ends = self._end_tokens(tokenizer)
        self._is_complete = True

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> list[list[Completion]]:
        """The completions of each request, in the order of its seeds.

        Raises:
            ConfigError: A prompt and its completion do not fit the model's positions, or one row
                does not fit `batch_tokens`.
            RuntimeError: The last weights did not arrive completely.
            ValueError: An empty prompt.
        """
        if not self._is_complete:
            raise RuntimeError(
                "the last load_weights failed half-way, so the engine holds a mixture of two "
                "versions; load complete weights before generating"
            )
        self._check(requests, sampling)
        completions: list[list[Completion | None]] = [[None] * len(r.seeds) for r in requests]
        for rows in self._batches(requests, sampling.max_tokens):
            sampled = decode(self._model, self._decode_batch(requests, rows), sampling)
            for (request, sample), completion in zip(rows, self._completions(sampled), strict=True):
                completions[request][sample] = completion
        return completions  # type: ignore[return-value]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Copies new weights by state-dict name; a tied weight may come under any of its names.

        Raises:
            ValueError: A name the model does not have, a name that did not come, or another shape.
                The engine then refuses to generate until complete weights have come.
        """
        self._is_complete = False
        own = self._model.state_dict()
        with torch.no_grad():
            for name, tensor in self._expected.checked(weights):
                own[name].copy_(tensor)
        self.version = version
        self._is_complete = True

    def close(self) -> None:
        """Frees the copy of the model."""
        self._model = None
        self._is_complete = False

    def _end_tokens(self, tokenizer: Any) -> Bool[Tensor, " V"]:
        """Which tokens of the vocabulary end a sequence, see `end_ids`."""
        named = getattr(self._model.generation_config, "eos_token_id", None)
        ends = torch.zeros(self._expected.vocabulary, dtype=torch.bool, device=self._device)
        ends[list(end_ids(named, tokenizer))] = True
        return ends

    def _check(self, requests: Sequence[GenerationRequest], sampling: SamplingSettings) -> None:
        remedy = "choose a model with more positions"
        check_lengths(requests, sampling.max_tokens, self._expected.positions, remedy)
        for request in requests:
            tokens = len(request.prompt_ids) + sampling.max_tokens
            if tokens > self._batch_tokens:
                raise ConfigError(
                    f"request {request.id}: one row of {tokens} tokens exceeds "
                    f"engine.batch_tokens={self._batch_tokens}; raise it"
                )

    def _batches(
        self, requests: Sequence[GenerationRequest], max_tokens: int
    ) -> Iterator[list[_Row]]:
        """Rows in batches within the budget; prompts of similar length together, longest first."""
        order = sorted(range(len(requests)), key=lambda i: -len(requests[i].prompt_ids))
        rows = [(i, sample) for i in order for sample in range(len(requests[i].seeds))]
        start = 0
        while start < len(rows):
            longest = len(requests[rows[start][0]].prompt_ids)
            size = self._batch_tokens // (longest + max_tokens)
            yield rows[start : start + size]
            start += size

    def _decode_batch(
        self, requests: Sequence[GenerationRequest], rows: Sequence[_Row]
    ) -> DecodeBatch:
        used = list(dict.fromkeys(request for request, _ in rows))
        place = {request: i for i, request in enumerate(used)}
        seeds = [requests[request].seeds[sample] for request, sample in rows]
        return DecodeBatch(
            prompts=[requests[request].prompt_ids for request in used],
            prompt_index=torch.tensor([place[r] for r, _ in rows], device=self._device),
            seeds=torch.tensor(seeds, dtype=torch.int64, device=self._device),
            watch=StopWatch(self._texts, [requests[request].stop for request, _ in rows]),
            ends=self._ends,
        )

    def _completions(self, sampled: Sampled) -> list[Completion]:
        lengths = sampled.lengths.tolist()
        ids = [row[:n] for row, n in zip(sampled.ids.tolist(), lengths, strict=True)]
        logprobs = [row[:n] for row, n in zip(sampled.logprobs.tolist(), lengths, strict=True)]
        texts = self._texts.decode(ids)
        reasons = sampled.reasons.tolist()
        return [
            Completion(row, chances, text, _REASONS.get(reason, "length"))
            for row, chances, text, reason in zip(ids, logprobs, texts, reasons, strict=True)
        ]


def _refuse(config: Any) -> None:
    """Refuses models that the decoding loop would compute wrongly."""
    if config._attn_implementation not in ("sdpa", "eager"):
        raise ConfigError(
            f"engine.attention={config._attn_implementation}: the hf engine masks padded prompts, "
            f"which needs sdpa or eager; set engine.attention to one of them"
        )
    kinds = partial_attention(config) or logit_changes(config)
    if kinds:
        raise ConfigError(
            f"engine=hf does not decode a {config.model_type} model with {', '.join(kinds)}; set "
            f"engine=vllm"
        )
