"""Sampling in a thread: what the step gets, and when the engine is free again."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import torch

from tests.rollout.scripted import ScriptedEngine, collector, row, vpo
from vpo_lightning.rollout.ahead import AheadSampler, in_order
from vpo_lightning.rollout.collector import RolloutCollector
from vpo_lightning.rollout.engine import Completion, GenerationRequest, SamplingSettings

CPU = torch.device("cpu")
CHAINS = [[[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.5], [0.0, 0.0]]]


class GatedEngine(ScriptedEngine):
    """Samples when a test lets it."""

    gate = threading.Event()

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> list[list[Completion]]:
        assert self.gate.wait(10)
        return super().generate(requests, sampling)


def gated() -> tuple[RolloutCollector, GatedEngine]:
    made = collector({"p": CHAINS, "q": CHAINS}, vpo())
    assert isinstance(made.engine, ScriptedEngine)
    engine = GatedEngine(made.engine._texts)
    engine.gate = threading.Event()
    made.engine = engine
    return made, engine


def test_a_batch_sampled_ahead_is_the_batch_that_would_be_sampled_now() -> None:
    made, engine = gated()
    rows, ahead = [row("p"), row("q")], AheadSampler()
    ahead.start(made, rows, 3, CPU)
    engine.gate.set()
    sampled = ahead.take(3)
    assert sampled is not None
    assert ahead.take(3) is None  # none used twice
    asked = list(engine.requests)
    used = made.collect(sampled.rows, 3, sampled=sampled)
    assert engine.requests == asked  # and none sampled twice
    now = made.collect(rows, 3)
    assert engine.requests == [*asked, *asked]
    for one, other in zip(used.groups, now.groups, strict=True):
        assert one.completions == other.completions
        assert torch.equal(one.advantages, other.advantages)
        assert torch.equal(one.weights, other.weights)


def test_the_version_is_that_of_the_weights_when_sampling_began() -> None:
    made, engine = gated()
    engine.version, ahead = 2, AheadSampler()
    ahead.start(made, [row("p")], 3, CPU)
    engine.gate.set()
    ahead.wait()
    engine.version = 3  # the hand-over, which waits for the sampling
    sampled = ahead.take(3)
    assert sampled is not None
    batch = made.collect(sampled.rows, 3, sampled=sampled)
    assert (batch.step, batch.policy_version) == (3, 2)


def test_a_batch_of_another_step_is_not_taken() -> None:
    made, engine = gated()
    ahead = AheadSampler()
    ahead.start(made, [row("p")], 3, CPU)
    engine.gate.set()
    assert ahead.take(4) is None
    assert ahead.waiting is not None


def test_an_error_of_the_engine_reaches_whoever_waits_once() -> None:
    made, engine = gated()
    ahead = AheadSampler()
    ahead.start(made, [row("unknown")], 0, CPU)
    engine.gate.set()
    with pytest.raises(KeyError, match="unknown"):
        ahead.wait()
    assert ahead.take(0) is None


def test_abandoning_a_batch_does_not_wait_for_ever() -> None:
    made, engine = gated()
    ahead = AheadSampler()
    ahead.start(made, [row("p")], 0, CPU)
    ahead.abandon(0.05)
    assert ahead.waiting is None
    engine.gate.set()


def test_completions_of_processes_that_take_prompts_in_turn_are_put_in_order() -> None:
    def group(name: str) -> list[Completion]:
        return [Completion([1], [0.0], name, "eos")]

    shares = [[group("a"), group("c")], [group("b"), group("d")]]
    assert [found[0].text for found in in_order(shares)] == ["a", "b", "c", "d"]
