"""Requests as vLLM's sampling parameters, its tokens as completions: shared by both vLLM engines.

Nothing here imports vllm: the parameters are plain values, for `vllm.SamplingParams(**fields)` in
this process and for a request body over HTTP.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vpo_lightning.parsing import StopRule
from vpo_lightning.rollout.engine import Completion, SamplingSettings
from vpo_lightning.rollout.stopping import end_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def sampling_fields(sampling: SamplingSettings, seed: int, ends: Collection[int]) -> dict[str, Any]:
    """The fields of `vllm.SamplingParams` for one sample of one prompt.

    Stop rules are not among them: vLLM's stop strings end at the first occurrence, a rule at the
    n-th, so the engines watch the tokens themselves.

    Args:
        sampling: How tokens are drawn; vLLM restricts the support in the order of
            `core.support.kept_tokens` (min-p, top-k, top-p).
        seed: Of this sample.
        ends: The tokens that end a sequence; each stays in the completion.
    """
    return {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "seed": seed,
        "logprobs": 0,  # of the sampled token only
        "stop_token_ids": sorted(ends),
        "detokenize": False,  # the text is decoded once, at the end
    }


def completion(
    ids: Sequence[int],
    logprobs: Sequence[float],
    stop: StopRule | None,
    ends: Collection[int],
    tokenizer: PreTrainedTokenizerBase,
) -> Completion:
    """The completion of sampled tokens; why it ended follows from the tokens themselves.

    Args:
        ids: Sampled tokens up to and including the one that ended the completion.
        logprobs: Log-probability of each, in nats.
        stop: The request's stop rule.
        ends: The tokens that end a sequence.
        tokenizer: Decodes the tokens.

    Raises:
        RuntimeError: The engine gave no tokens, or not one log-probability for each.
    """
    if not ids or len(ids) != len(logprobs):
        raise RuntimeError(
            f"vLLM returned {len(ids)} tokens with {len(logprobs)} log-probabilities; expected at "
            "least one token, and one log-probability for each"
        )
    text = decode(tokenizer, ids)
    reason: Literal["eos", "stop", "length"] = "length"
    if ids[-1] in ends:
        reason = "eos"
    elif stop is not None and text.count(stop.text) >= stop.count:
        reason = "stop"
    return Completion(list(ids), list(logprobs), text, reason)


def tokens_until_stop(
    ids: Sequence[int], stop: StopRule | None, tokenizer: PreTrainedTokenizerBase
) -> int:
    """How many of `ids` a completion keeps: up to the token that completes the stop rule."""
    if stop is None or decode(tokenizer, ids).count(stop.text) < stop.count:
        return len(ids)
    low, high = 1, len(ids)  # the count never falls as tokens are added
    while low < high:
        middle = (low + high) // 2
        if decode(tokenizer, ids[:middle]).count(stop.text) >= stop.count:
            high = middle
        else:
            low = middle + 1
    return low


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of token ids without special tokens, as every engine derives it."""
    return tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)  # pyright: ignore[reportReturnType]


def end_tokens(
    model_folder: str | Path,
    tokenizer: PreTrainedTokenizerBase,
    *,
    trust_remote_code: bool = False,
) -> frozenset[int]:
    """The tokens that end a sequence of the model in a folder, see `end_ids`."""
    from transformers import AutoConfig, GenerationConfig

    try:
        named = GenerationConfig.from_pretrained(str(model_folder)).eos_token_id
    except OSError:  # the folder has none: transformers makes it from the model's config
        config = AutoConfig.from_pretrained(str(model_folder), trust_remote_code=trust_remote_code)
        named = getattr(config, "eos_token_id", None)
    return end_ids(named, tokenizer)
