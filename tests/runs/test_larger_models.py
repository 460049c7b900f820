"""What larger models need trains like the plain run: adapters, FSDP2, resuming."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.conftest import Train
from tests.runs.records import metrics, sampled_ids, weights

pytestmark = pytest.mark.slow
TWO = ("strategy.devices=2", "strategy.accelerator=cpu")
# A start policy with groups that have a signal, and an optimizer that moves adapters visibly.
LEARNS = ("warmup.steps=150", "optimizer.build.lr=1e-3", "optimizer.warmup_steps=0")
LORA = ("model.lora.rank=4", "model.lora.alpha=8")


def run(train: Train, *overrides: str) -> None:
    done = train(*LEARNS, *overrides)
    assert done.returncode == 0, done.stderr


def assert_same_training(one: Path, two: Path, relative: float) -> None:
    assert sampled_ids(one) == sampled_ids(two)
    for a, b in zip(metrics(one), metrics(two), strict=True):
        for key in ("train/loss", "train/grad_norm", "train/kl"):
            # Metrics are logged in float32.
            assert a[key] == pytest.approx(b[key], rel=1e-5, abs=1e-6)
    trained, other = weights(one), weights(two)
    assert trained.keys() == other.keys()
    for name, value in trained.items():
        difference = torch.linalg.vector_norm((value - other[name]).double())
        assert difference <= relative * torch.linalg.vector_norm(value.double())


@pytest.mark.parametrize("lora", [(), LORA], ids=["all weights", "adapters"])
def test_sharded_processes_sample_and_learn_what_one_does_in_float64(
    train: Train, tmp_path: Path, lora: tuple[str, ...]
) -> None:
    settings = ("model.dtype=float64", "trainer.max_steps=5", *lora)
    run(train, "hydra.run.dir=one", *settings)
    run(train, "hydra.run.dir=two", *settings, "strategy=fsdp", *TWO)
    # What is left is the order of sums.
    assert_same_training(tmp_path / "one", tmp_path / "two", relative=1e-10)
    assert metrics(tmp_path / "one")[0]["train/grad_norm"] > 0
    if lora:
        run(train, "hydra.run.dir=ddp", *settings, "strategy=ddp", *TWO)
        assert_same_training(tmp_path / "one", tmp_path / "ddp", relative=1e-10)


@pytest.mark.parametrize(
    "settings",
    [
        ("strategy=fsdp", *TWO, "ppo.minibatches=2"),
        ("strategy=fsdp", *TWO, *LORA, "model.gradient_checkpointing=true"),
        (*LORA, "model.lora.dropout=0.1"),
    ],
    ids=["fsdp", "fsdp with adapters", "dropout"],
)
def test_a_stopped_run_continues_bit_for_bit(
    train: Train, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    run(train, "hydra.run.dir=whole", "trainer.max_steps=4", *settings)
    run(train, "hydra.run.dir=part", "trainer.max_steps=2", *settings)
    resumed = train("run=part", "resume=true", "trainer.max_steps=4", small=False)
    assert resumed.returncode == 0, resumed.stderr
    assert metrics(tmp_path / "part") == metrics(tmp_path / "whole")
    first, second = weights(tmp_path / "part"), weights(tmp_path / "whole")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_an_adapter_for_a_missing_layer_is_one_line(train: Train) -> None:
    done = train(*LEARNS, *LORA, "model.lora.targets=[query]")
    assert done.returncode == 2
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error:"))
    assert "model.lora.targets: the model has no linear layer query; it has down_proj" in line
    assert "Traceback" not in done.stderr
