"""Requests as vLLM's parameters, tokens as completions; without vLLM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from tests.text_model import save_text_model
from vpo_lightning.parsing import StopRule
from vpo_lightning.policy.loading import load_tokenizer
from vpo_lightning.rollout.engine import SamplingSettings
from vpo_lightning.rollout.vllm_sampling import (
    completion,
    end_tokens,
    sampling_fields,
    tokens_until_stop,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_text_model(tmp_path_factory.mktemp("text") / "model")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    return load_tokenizer(folder)


def ids_of(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]  # type: ignore[return-value]


def test_fields_are_those_of_one_sample() -> None:
    fields = sampling_fields(SamplingSettings(9, 0.7, 0.9, 20, 0.1), 2**62, {7, 1})
    assert fields == {
        "max_tokens": 9,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.1,
        "seed": 2**62,
        "logprobs": 0,
        "stop_token_ids": [1, 7],
        "detokenize": False,
    }


@pytest.mark.parametrize(
    ("text", "with_end", "reason"),
    [
        ("a|b|", False, "stop"),
        ("a|b", False, "length"),
        ("a|b", True, "eos"),
        ("a|b|", True, "eos"),
    ],
)
def test_the_tokens_say_why_a_completion_ended(
    tokenizer: PreTrainedTokenizerBase, text: str, with_end: bool, reason: str
) -> None:
    ids = ids_of(tokenizer, text) + [1] * with_end
    made = completion(ids, [-1.0] * len(ids), StopRule("|", 2), {1}, tokenizer)
    assert (made.ids, made.text, made.finish_reason) == (ids, text, reason)


def test_tokens_without_logprobs_are_an_error(tokenizer: PreTrainedTokenizerBase) -> None:
    for ids, logprobs in (([], []), ([5, 6], [-1.0])):
        with pytest.raises(RuntimeError, match="log-probabilities"):
            completion(ids, logprobs, None, {1}, tokenizer)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_tokens_are_kept_up_to_the_end_of_the_stop_text(
    tokenizer: PreTrainedTokenizerBase, count: int
) -> None:
    ids = ids_of(tokenizer, "<a>x</a><a>y</a> and more")
    kept = tokens_until_stop(ids, StopRule("</a>", count), tokenizer)
    assert kept == {1: 8, 2: 16, 3: len(ids)}[count]  # a byte is a token


def test_end_tokens_are_those_of_the_generation_config_and_the_tokenizer(
    folder: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    assert end_tokens(folder, tokenizer) == {1}
    file = folder / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "eos_token_id": [5, 9]}))
    assert end_tokens(folder, tokenizer) == {1, 5, 9}
    file.unlink()
    assert end_tokens(folder, tokenizer) == {1}
