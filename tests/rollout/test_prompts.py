"""The stream of training prompts: each once an epoch, in another order every time."""

from __future__ import annotations

from collections import Counter

import pytest

from vpo_lightning.errors import ConfigError
from vpo_lightning.rollout.prompts import PromptStream
from vpo_lightning.task import Objective, PromptRow

ROWS = [PromptRow(f"p{i}", "x" * (i + 1), {}, (Objective("o", "o"),)) for i in range(10)]


def stream(seed: int = 0, longest: int = 10, overlong: str = "drop") -> PromptStream:
    return PromptStream(ROWS, seed, lambda row: len(row.prompt), longest, overlong)


def ids(rows: list[PromptRow]) -> list[str]:
    return [row.id for row in rows]


def test_no_prompt_is_lost_or_used_twice_in_an_epoch() -> None:
    prompts = stream()
    # Batches that do not divide an epoch: what is left of it begins the next batch.
    taken = [name for _ in range(5) for name in ids(prompts.take(4))]
    assert Counter(taken[:10]) == Counter(taken[10:]) == Counter(ids(ROWS))


def test_epochs_differ_and_runs_with_one_seed_agree() -> None:
    first, again, other = (ids(stream(seed).take(20)) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert first[:10] != first[10:]


def test_a_stream_goes_on_where_it_was_stored() -> None:
    whole, first = stream(longest=7), stream(longest=7)
    first.take(9)
    second = stream(longest=7)
    second.load_state_dict(first.state_dict())
    assert ids(whole.take(14)[9:]) == ids(second.take(5))
    assert second.dropped == whole.dropped > 0


def test_prompts_that_are_too_long_are_counted_or_refused() -> None:
    prompts = stream(longest=7)
    assert sorted(ids(prompts.take(7))) == [f"p{i}" for i in range(7)]
    with pytest.raises(ConfigError, match=r"rollout\.max_prompt_tokens=7 .*overlong_prompts=drop"):
        stream(longest=7, overlong="error").take(10)
    with pytest.raises(ConfigError, match="every training prompt is longer"):
        stream(longest=0).take(1)
