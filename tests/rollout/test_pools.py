"""Evaluation pools, above all with weights that a goal-conditioned prompt states."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.task_layer.toy import VectorTask
from vpo_lightning.core.weights import sobol
from vpo_lightning.errors import ConfigError
from vpo_lightning.evaluation.pool import read_pools, write_pools
from vpo_lightning.evaluation.pool_metrics import PoolMetrics
from vpo_lightning.prompting import GoalConditioned, MultiAnswer, PromptStyle, SingleAnswer
from vpo_lightning.rollout.engine import Completion, GenerationRequest, SamplingSettings
from vpo_lightning.rollout.exchange import Exchange
from vpo_lightning.rollout.pools import PoolSampler
from vpo_lightning.scoring import RewardVector

SAMPLING = SamplingSettings(max_tokens=8)
TASK = VectorTask(weights=(3.0, 1.0))


class Obedient:
    """An engine that answers (share of x, share of y) as the prompt states them, and (.5, .5)."""

    version, positions = 0, 1024

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.requests: list[GenerationRequest] = []

    def encode(self, messages: Sequence[dict[str, str]]) -> list[int]:
        self.prompts.append(messages[-1]["content"])
        return [len(self.prompts) - 1]

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> list[list[Completion]]:
        self.requests += requests
        texts = [self._answer(self.prompts[request.prompt_ids[0]]) for request in requests]
        return [
            [Completion([1], [0.0], text, "eos") for _ in request.seeds]
            for request, text in zip(requests, texts, strict=True)
        ]

    def _answer(self, prompt: str) -> str:
        shares = [int(word.rstrip("%,.")) / 100 for word in prompt.split() if "%" in word]
        return json.dumps(shares if len(shares) == 2 else [0.5, 0.5])

    def load_weights(self, weights: Any, version: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def sample(style: PromptStyle, engine: Obedient, **settings: Any) -> Any:
    sampler = PoolSampler(TASK, engine, engine.encode, 6, 1, **settings)
    return sampler.sample(TASK.rows("test"), style, SAMPLING)[0]


def test_given_weights_are_stated_to_the_chains_of_a_pool_in_turn() -> None:
    pool = sample(GoalConditioned(), Obedient(), weights=[[1.0, 0.0], [1.0, 3.0]])
    assert pool.asked == [[1.0, 0.0], [0.25, 0.75]] * 3
    assert pool.rewards == [[[1.0, 0.0]], [[0.25, 0.75]]] * 3
    figures = PoolMetrics(ks=[1]).per_prompt(pool)
    assert figures["asked_reward"] == pytest.approx((1.0 + 0.25**2 + 0.75**2) / 2)


def test_each_chain_has_the_seed_it_has_under_fixed_weights() -> None:
    fixed, given = Obedient(), Obedient()
    sample(GoalConditioned(), fixed)
    sample(GoalConditioned(), given, weights=[[1.0, 0.0], [1.0, 3.0]])
    (whole,) = fixed.requests
    assert [list(request.seeds) for request in given.requests] == [
        list(whole.seeds[0::2]),
        list(whole.seeds[1::2]),
    ]


def test_a_grid_asks_each_chain_for_another_point_of_the_simplex() -> None:
    pool = sample(GoalConditioned(), Obedient(), weights="grid")
    expected = sobol(2, torch.tensor(1), num_draws=6)
    torch.testing.assert_close(torch.tensor(pool.asked, dtype=torch.float64), expected)
    assert len({tuple(vector) for vector in pool.asked}) == 6


def test_without_given_weights_the_fixed_ones_of_the_reward_vector_are_asked() -> None:
    assert sample(GoalConditioned(), Obedient()).asked == [[0.75, 0.25]] * 6
    vector = RewardVector(weights={"x": 1.0, "y": 4.0})
    assert sample(GoalConditioned(), Obedient(), reward_vector=vector).asked == [[0.2, 0.8]] * 6


def test_objectives_that_training_leaves_out_are_not_named() -> None:
    engine = Obedient()
    vector = RewardVector(objectives=["y"])
    assert sample(GoalConditioned(), engine, reward_vector=vector).asked == [[0.0, 1.0]] * 6
    assert "much x" not in engine.prompts[0]


@pytest.mark.parametrize("style", [SingleAnswer(), MultiAnswer(3)])
def test_prompts_that_state_no_weights_are_asked_as_ever(style: PromptStyle) -> None:
    engine = Obedient()
    pool = sample(style, engine, weights="grid")
    assert pool.asked is None
    assert len(engine.requests) == 1
    assert "asked_reward" not in PoolMetrics(ks=[1]).per_prompt(pool)


def test_weights_for_another_number_of_objectives_name_the_prompt() -> None:
    with pytest.raises(ConfigError, match=r"prompt test-1 has 2 objectives"):
        sample(GoalConditioned(), Obedient(), weights=[[1.0, 0.0, 0.0]])


def test_the_stated_weights_are_stored_with_the_pool(tmp_path: Path) -> None:
    pools = [
        sample(GoalConditioned(), Obedient(), weights="grid"),
        sample(SingleAnswer(), Obedient()),
    ]
    write_pools(pools, tmp_path / "pools.parquet")
    assert read_pools(tmp_path / "pools.parquet") == pools


class Counted:
    """An engine whose completions have as many tokens as their prompt, and which counts its calls.

    Attributes:
        calls: Of `generate`.
    """

    version, positions = 0, 1024

    def __init__(self) -> None:
        self.calls = 0

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> list[list[Completion]]:
        self.calls += 1
        return [
            [Completion([1] * len(r.prompt_ids), [0.0] * len(r.prompt_ids), "[0, 0]", "eos")]
            * len(r.seeds)
            for r in requests
        ]

    def load_weights(self, weights: Any, version: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("lengths", [(8, 1), (2, None)], ids=["other lengths", "no prompts"])
def test_processes_call_an_engine_that_they_share_equally_often(
    lengths: tuple[int | None, ...],
) -> None:
    barrier, engines = threading.Barrier(2, timeout=10), [Counted(), Counted()]
    said: list[Any] = [None, None]

    def gather(rank: int, value: Any) -> list[Any]:
        said[rank] = value
        barrier.wait()
        shares = list(said)
        barrier.wait()
        return shares

    def sampled(rank: int) -> int:
        length = lengths[rank]
        sampler = PoolSampler(
            TASK,
            engines[rank],
            lambda _: [0] * (length or 0),
            6,
            1,
            num_tokens=16,
            exchange=Exchange(rank, partial(gather, rank)),
        )
        rows = [] if length is None else TASK.rows("test")[:1]
        return len(sampler.sample(rows, SingleAnswer(), SAMPLING))

    with ThreadPoolExecutor() as pool:
        counts = list(pool.map(sampled, (0, 1)))
    assert counts == [length is not None for length in lengths]
    assert engines[0].calls == engines[1].calls > 0
