"""Sampling the next batch while the current one trains: versions, determinism, resuming."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conftest import Train
from tests.runs.killing import kill_at_step
from tests.runs.records import metrics, sampled_ids, weights
from vpo_lightning.rollout.store import read_rollouts

pytestmark = pytest.mark.slow
AHEAD = (
    "rollout.staleness=1",
    "loss=importance",
    "warmup.steps=150",
    "optimizer.build.lr=1e-3",
    "optimizer.warmup_steps=0",
    "trainer.max_steps=6",
)


def test_a_killed_off_policy_run_continues_bit_for_bit_with_the_batch_it_had_sampled(
    train: Train, train_command: Callable[..., list[str]], tmp_path: Path
) -> None:
    assert train("hydra.run.dir=whole", *AHEAD).returncode == 0
    folder, whole = tmp_path / "killed", tmp_path / "whole"
    kill_at_step(train_command("hydra.run.dir=killed", *AHEAD), folder, 3)
    resumed = train(f"run={folder}", "resume=true", small=False)
    assert resumed.returncode == 0, resumed.stderr
    assert metrics(folder) == metrics(whole)
    assert sampled_ids(folder) == sampled_ids(whole)
    first, second = weights(folder), weights(whole)
    assert all(torch.equal(first[name], second[name]) for name in first)
    for run in (folder, whole):
        versions = {(r["step"], r["policy_version"]) for r in read_rollouts(run / "rollouts")}
        assert versions == {(0, 0), (1, 0), (2, 1), (3, 2), (4, 3), (5, 4)}
    behind = [record["rollout/staleness"] for record in metrics(whole)]
    assert behind == [0, 1, 1, 1, 1, 1]


def test_two_processes_sample_ahead_what_one_does_in_float64(train: Train, tmp_path: Path) -> None:
    settings = (*AHEAD, "model.dtype=float64", "trainer.max_steps=4")
    two = ("strategy=ddp", "strategy.devices=2", "strategy.accelerator=cpu")
    # Validation uses the engine between two batches that are sampled ahead.
    validating = ("trainer.validate_every=1", "trainer.validation_prompts=2")
    assert train("hydra.run.dir=one", *settings).returncode == 0
    assert train("hydra.run.dir=two", *settings, *two, *validating).returncode == 0
    assert sampled_ids(tmp_path / "one") == sampled_ids(tmp_path / "two")
    trained, other = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name, value in trained.items():
        # What is left is the order of sums.
        torch.testing.assert_close(other[name], value, rtol=1e-10, atol=1e-12)
