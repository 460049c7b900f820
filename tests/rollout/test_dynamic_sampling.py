"""Further prompts until enough groups have a signal, with a scripted engine."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.rollout.scripted import collector, row, vpo
from vpo_lightning.core.gdpo import gdpo
from vpo_lightning.prompting import SingleAnswer
from vpo_lightning.rollout.batch import RolloutBatch
from vpo_lightning.rollout.credit import Method
from vpo_lightning.rollout.dynamic_sampling import collect_with_signal, credited_together
from vpo_lightning.task import PromptRow

# Equal sums, so GRPO on the sum sees nothing; under random weights there is a signal.
OPPOSED = [[[1.0, 0.0]], [[0.0, 1.0]]]
LARGE = [[[3.0, 1.0]], [[0.0, 0.0]]]
EQUAL = [[[0.5, 0.5]], [[0.5, 0.5]]]


def sampled(
    names: Sequence[str],
    count: int,
    rounds: int,
    elsewhere: int = 0,
    method: Method | None = None,
) -> tuple[RolloutBatch, list[int]]:
    """A batch from prompts that have a signal if their name ends in +, and the sizes of rounds.

    Names that end in ++ have one that is three times as large.
    `elsewhere` groups are missing on another process until the last round.
    """
    vectors = {name: LARGE if "++" in name else OPPOSED if "+" in name else EQUAL for name in names}
    made = collector(vectors, method or vpo(SingleAnswer()))
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
        lambda groups: credited_together(made.method, groups, None),
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


@pytest.mark.parametrize("convention", ["matched", "verl", "none", "trl"])
def test_gdpo_is_whitened_once_over_the_batch_that_is_trained_on(convention: Any) -> None:
    """The reward of y counts half, so that opposed objectives leave a signal."""
    advantage = functools.partial(gdpo, convention=convention)
    method = vpo(SingleAnswer(), weights=half_of_y, advantage=advantage)
    names = ["a", "b+", "c", "d++", "e+"]
    batch, asked = sampled(names, 3, 10, method=method)
    # The filter drops flat groups although some conventions move all their rollouts alike.
    assert (names_of(batch), asked) == (["b+", "d++", "e+"], [3, 2])
    rewards = np.array([[vectors[0] for vectors in group] for group in (OPPOSED, LARGE, OPPOSED)])
    lengths = np.array([[len(c.ids) for c in group.completions] for group in batch.groups])
    expected = naive_gdpo(rewards, np.array([1.0, 0.5]), lengths, convention)
    found = torch.stack([group.advantages for group in batch.groups]).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)
    assert batch.metrics["rollout/max_abs_advantage"] == pytest.approx(np.abs(expected).max())


def half_of_y(counts: Tensor, seeds: Tensor, *, step: int) -> Tensor:
    return torch.tensor([1.0, 0.5], dtype=torch.float64).expand(len(seeds), 1, 2)


def naive_gdpo(rewards: Any, weights: Any, lengths: Any, convention: str) -> Any:
    """GDPO of groups (B, G, K), written from the formulas."""
    ddof = 0 if convention == "matched" else 1
    eps = {"matched": 0.0, "verl": 1e-6, "trl": 1e-4}.get(convention)
    sums = np.zeros(rewards.shape[:2])
    for b, group in enumerate(rewards):
        for k in range(rewards.shape[2]):
            values = group[:, k] - group[:, k].mean()
            if eps is not None:
                std = group[:, k].std(ddof=ddof)
                values = values / (std + eps) if convention != "matched" or std >= 1e-6 else 0.0
            sums[b] += weights[k] * values
    if convention in ("verl", "none"):
        tokens = np.repeat(sums.ravel(), lengths.ravel())
        return (sums - tokens.mean()) / np.sqrt(tokens.var(ddof=1) + 1e-8)
    std = sums.std(ddof=ddof)
    return (sums - sums.mean()) / (std + (1e-4 if convention == "trl" else 0.0))


def test_other_advantages_are_those_of_the_round_to_the_last_bit() -> None:
    batch, _ = sampled(["a", "b+", "c", "d++", "e+"], 3, 10)
    alone = collector({"d++": LARGE}, vpo(SingleAnswer())).collect([row("d++")], 0, attempt=1)
    assert torch.equal(batch.groups[1].advantages, alone.groups[0].advantages)
