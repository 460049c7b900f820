"""Two processes train like one, and a sweep of two-process jobs stays a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.conftest import Train
from tests.runs.records import metrics, sampled_ids, weights

pytestmark = pytest.mark.slow
DDP = ("strategy=ddp", "strategy.devices=2", "strategy.accelerator=cpu")


def test_two_processes_sample_and_learn_what_one_does_in_float64(
    train: Train, tmp_path: Path
) -> None:
    settings = ("model.dtype=float64", "trainer.max_steps=5")
    for name, strategy in (("one", ()), ("two", DDP)):
        run = train(f"hydra.run.dir={name}", *settings, *strategy)
        assert run.returncode == 0, run.stderr
    assert sampled_ids(tmp_path / "one") == sampled_ids(tmp_path / "two")
    # What is left is the order of sums.
    _assert_same_training(tmp_path / "one", tmp_path / "two", relative=1e-10)


@pytest.mark.parametrize("updates", [(), ("ppo.minibatches=2", "ppo.micro_batch_size=3")])
def test_two_processes_learn_what_one_does_from_stored_rollouts_in_float32(
    train: Train, tmp_path: Path, updates: tuple[str, ...]
) -> None:
    assert train("hydra.run.dir=source", "trainer.max_steps=5", *updates).returncode == 0
    replay = ("engine=replay", f"engine.path={tmp_path / 'source' / 'rollouts'}")
    run = train("hydra.run.dir=two", "trainer.max_steps=5", *updates, *replay, *DDP)
    assert run.returncode == 0, run.stderr
    _assert_same_training(tmp_path / "source", tmp_path / "two", relative=1e-5)


def _assert_same_training(one: Path, two: Path, relative: float) -> None:
    first, second = metrics(one), metrics(two)
    assert len(first) == len(second) == 5
    for a, b in zip(first, second, strict=True):
        for key in ("train/loss", "train/grad_norm", "rollout/set_reward"):
            # The loss is a difference of near-equal sums: its scale is that of the advantages, 1.
            assert a[key] == pytest.approx(b[key], rel=relative, abs=relative)
    trained, other = weights(one), weights(two)
    for name, value in trained.items():
        difference = torch.linalg.vector_norm((value - other[name]).double())
        assert difference <= relative * torch.linalg.vector_norm(value.double())


def test_a_sweep_of_two_process_jobs_makes_one_folder_for_each_job(
    train: Train, tmp_path: Path
) -> None:
    run = train("-m", "seed=1,2", "hydra.sweep.dir=sweep", "trainer.max_steps=1", *DDP)
    assert run.returncode == 0, run.stderr
    summaries = sorted((tmp_path / "sweep").rglob("summary.json"))
    assert len(summaries) == 2
    assert not (tmp_path / "outputs").exists()
    assert not (tmp_path / "multirun").exists()


def test_a_sweep_goes_on_after_a_failed_job_and_each_job_is_one_wandb_run(
    train: Train, tmp_path: Path
) -> None:
    settings = (
        "-m",
        "task.size=5,8,7",
        "hydra.sweep.dir=sweep",
        "trainer.max_steps=2",
        "logger=wandb",
        "logger.wandb.offline=true",
    )
    run = train(*settings)
    assert run.returncode != 0
    assert "task.size" in run.stderr
    folders = [path.parent for path in sorted((tmp_path / "sweep").rglob("summary.json"))]
    assert len(folders) == 2
    for folder in folders:
        assert len(list(folder.glob("wandb/offline-run-*"))) == 1
    (folders[1] / "summary.json").unlink()  # as if it had been killed in its last step
    again = train(*settings, "skip_finished=true")
    assert again.stdout.count("finished already, skipped") == 1
    assert (folders[1] / "summary.json").exists()
    other = train(*settings, "skip_finished=true", "m=2")
    assert "another config" in other.stderr


def test_only_the_first_process_reads_the_records_of_the_run(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others may be ahead of the process that writes them."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "def refuse(event, arguments):\n"
        "    if event == 'open' and str(arguments[0]).endswith('metrics.jsonl'):\n"
        "        raise FileNotFoundError(arguments[0])\n"
        "if os.environ.get('RANK') == '1':\n"
        "    sys.addaudithook(refuse)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = train("trainer.max_steps=1", *DDP)
    assert run.returncode == 0, run.stderr
