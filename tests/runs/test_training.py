from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conftest import Train
from tests.runs.killing import kill_at_step, wait_for
from tests.runs.records import metrics, sampled_ids, weights
from vpo_lightning.lightning.loggers import read_metrics
from vpo_lightning.rollout.store import read_rollouts

pytestmark = pytest.mark.slow


def test_a_run_leaves_everything_a_run_folder_promises(train: Train, tmp_path: Path) -> None:
    run = train("experiment=smoke", "hydra.run.dir=run", small=False)
    assert run.returncode == 0, run.stderr
    folder = tmp_path / "run"
    for name in ("config.yaml", "metrics.jsonl", "metrics.csv", "summary.json", "eval.json"):
        assert (folder / name).stat().st_size > 0
    for name in ("checkpoints/last.ckpt", "checkpoints/best.ckpt", "policy/config.json", "log.txt"):
        assert (folder / name).exists()
    assert [record["step"] for record in read_metrics(folder)] == [1, 2, 3]
    assert "start, single" in run.stdout
    assert json.loads((folder / "summary.json").read_text())["status"] == "finished"


def test_rollouts_hold_every_answer_with_what_was_scored(train: Train, tmp_path: Path) -> None:
    assert train("hydra.run.dir=run").returncode == 0
    records = list(read_rollouts(tmp_path / "run" / "rollouts"))
    assert len(records) == 3 * 4 * 4
    for record in records:
        assert [answer["slot"] for answer in record["answers"]] == [0, 1, 2]
        assert all(len(answer["rewards"]) == 4 for answer in record["answers"])
        assert len(record["completion_ids"]) == len(record["logprobs"])
        shares = [answer["win_share"] for answer in record["answers"]]
        assert sum(shares) == pytest.approx(1)
        assert record["policy_version"] == record["step"]


def test_a_run_repeats_itself_bit_for_bit(train: Train, tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert train(f"hydra.run.dir={name}").returncode == 0
    assert metrics(tmp_path / "one") == metrics(tmp_path / "two")
    first, second = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_stored_rollouts_replayed_give_the_same_run(train: Train, tmp_path: Path) -> None:
    assert train("hydra.run.dir=one").returncode == 0
    replay = ("engine=replay", f"engine.path={tmp_path / 'one' / 'rollouts'}")
    run = train("hydra.run.dir=two", *replay)
    assert run.returncode == 0, run.stderr
    sampled = metrics(tmp_path / "one")
    for step in sampled:
        del step["rollout/logprob_mismatch"]  # a replay computes nothing that could be compared
    assert sampled == metrics(tmp_path / "two")


@pytest.mark.parametrize("updates", [(), ("ppo.epochs=2", "ppo.minibatches=2")])
def test_a_killed_run_continues_bit_for_bit(
    train: Train,
    train_command: Callable[..., list[str]],
    tmp_path: Path,
    updates: tuple[str, ...],
) -> None:
    settings = (*updates, "trainer.max_steps=6")
    assert train("hydra.run.dir=whole", *settings).returncode == 0
    folder = tmp_path / "killed"
    kill_at_step(train_command("hydra.run.dir=killed", *settings), folder, 3)
    fewer = train(f"run={folder}", "resume=true", "trainer.max_steps=1", small=False)
    assert fewer.returncode == 2
    assert "trainer.max_steps=1: the run has made " in fewer.stderr
    assert fewer.stderr.count("\n") == 1
    resumed = train(f"run={folder}", "resume=true", small=False)
    assert resumed.returncode == 0, resumed.stderr
    assert metrics(folder) == metrics(tmp_path / "whole")
    assert sampled_ids(folder) == sampled_ids(tmp_path / "whole")
    first, second = weights(folder), weights(tmp_path / "whole")
    assert all(torch.equal(first[name], second[name]) for name in first)
    again = train(f"run={folder}", "resume=true", small=False)
    assert again.returncode == 0
    assert "finished" in again.stdout


def test_ctrl_c_leaves_a_valid_checkpoint_and_a_summary(
    train: Train, train_command: Callable[..., list[str]], tmp_path: Path
) -> None:
    command = train_command("hydra.run.dir=run", "trainer.max_steps=500")
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    folder = tmp_path / "run"
    wait_for(lambda: (folder / "rollouts" / "step_000002_rank_0.parquet").exists())
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Stopping after this step" in output
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "stopped"
    step = summary["steps"]
    checkpoint = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=False)
    assert checkpoint["vpo_step"] == step == metrics(folder)[-1]["step"]
    resumed = train(f"run={folder}", "resume=true", f"trainer.max_steps={step + 1}", small=False)
    assert resumed.returncode == 0, resumed.stderr
    assert metrics(folder)[-1]["step"] == step + 1
