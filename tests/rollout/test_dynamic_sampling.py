"""Further prompts until enough groups have a signal, with a scripted engine."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from tests.rollout.scripted import collector, row, vpo
from vpo_lightning.prompting import SingleAnswer
from vpo_lightning.rollout.batch import RolloutBatch
from vpo_lightning.rollout.dynamic_sampling import collect_with_signal
from vpo_lightning.task import PromptRow

# Equal sums, so GRPO on the sum sees nothing; under random weights there is a signal.
OPPOSED = [[[1.0, 0.0]], [[0.0, 1.0]]]
EQUAL = [[[0.5, 0.5]], [[0.5, 0.5]]]


def sampled(
    names: Sequence[str], count: int, rounds: int, elsewhere: int = 0
) -> tuple[RolloutBatch, list[int]]:
    """A batch from prompts that have a signal if their name ends in +, and the sizes of rounds.

    `elsewhere` groups are missing on another process until the last round.
    """
    vectors = {name: OPPOSED if name.endswith("+") else EQUAL for name in names}
    made = collector(vectors, vpo(SingleAnswer()))
    stream = itertools.cycle(names)
    asked: list[int] = []

    def take(size: int) -> list[PromptRow]:
        asked.append(size)
        return [row(next(stream)) for _ in range(size)]

    batch = collect_with_signal(
        take,
        lambda rows, attempt: made.collect(rows, 0, attempt=attempt),
        count,
        rounds,
        lambda value: max(value, elsewhere),
    )
    return batch, asked


def names_of(batch: RolloutBatch) -> list[str]:
    return [group.row.id for group in batch.groups]


def test_one_round_takes_what_it_finds() -> None:
    batch, asked = sampled(["a", "b+"], 2, 1)
    assert (names_of(batch), asked) == (["a", "b+"], [2])
    assert "rollout/sampling_rounds" not in batch.metrics


def test_later_rounds_ask_for_what_is_missing_and_drop_nothing_good() -> None:
    batch, asked = sampled(["a", "b+", "c", "d+", "e+"], 3, 10)
    assert (names_of(batch), asked) == (["b+", "d+", "e+"], [3, 2])
    assert batch.metrics["rollout/sampling_rounds"] == 2
    assert batch.metrics["rollout/discarded_groups"] == 2
    assert batch.metrics["rollout/surplus_groups"] == 0


def test_reward_metrics_are_means_over_all_that_was_sampled() -> None:
    batch, _ = sampled(["a", "b+", "c", "d+", "e+"], 3, 10)
    assert batch.metrics["rollout/no_signal_fraction"] == pytest.approx(2 / 5)


def test_after_the_last_round_groups_without_signal_fill_the_batch() -> None:
    batch, asked = sampled(["a", "b", "c+", "d", "e"], 2, 2)
    assert (names_of(batch), asked) == (["c+", "a"], [2, 2])
    assert batch.metrics["rollout/filled_groups"] == 1


def test_a_process_that_has_enough_takes_part_and_counts_its_surplus() -> None:
    batch, asked = sampled(["a+", "b+", "c+"], 2, 3, elsewhere=1)
    assert (names_of(batch), asked) == (["a+", "b+"], [2, 1, 1])
    assert batch.metrics["rollout/surplus_groups"] == 2
