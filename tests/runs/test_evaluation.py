"""vpo-eval, and what training says about cost and alarms, in whole runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vpo_lightning import entry
from vpo_lightning.evaluate import job
from vpo_lightning.evaluation.alarms import AlarmThresholds, find_alarms
from vpo_lightning.evaluation.pool import read_pools
from vpo_lightning.lightning.loggers import read_metrics

pytestmark = pytest.mark.slow
SMALL = ("evaluation.num_prompts=24", "evaluation.num_answers=6", "evaluation.temperatures=[0.7]")
WARNS = ("alarms.window=2", "alarms.kl=1e-9", "trainer.max_steps=4")


def command(*overrides: str) -> list[str]:
    return [sys.executable, "-m", "vpo_lightning.evaluate", *overrides]


def evaluate(*overrides: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*overrides), capture_output=True, text=True, timeout=240, check=False
    )


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory, warmup_cache: Path) -> Path:
    """A short run that warns, without evaluation."""
    from tests.conftest import SMALL as SETTINGS

    folder = tmp_path_factory.mktemp("eval") / "run"
    settings = [*SETTINGS, *WARNS, f"cache_dir={warmup_cache}", f"hydra.run.dir={folder}"]
    done = subprocess.run(
        [sys.executable, "-m", "vpo_lightning.train", *settings],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (folder / "stdout.txt").write_text(done.stdout)
    return folder


def texts(path: Path) -> dict[str, Any]:
    return {pool.prompt_id: pool.texts for pool in read_pools(path)}


def test_a_run_is_evaluated_and_its_figures_computed_again_from_files(
    run_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run_folder, folder)
    done = evaluate(f"run={folder}", *SMALL)
    assert done.returncode == 0, done.stderr
    first = json.loads((folder / "eval.json").read_text())
    (evaluation,) = first["evaluations"]
    assert (evaluation["policy"], evaluation["prompts"], evaluation["calls"]) == ("vpo", 24, 2)
    figure = evaluation["figures"]["expected_max@3"]
    assert figure["low"] < figure["mean"] < figure["high"]
    shutil.rmtree(folder / "policy")  # no model is needed any more
    (folder / "eval.json").unlink()
    again = evaluate(f"run={folder}", "sample=false", *SMALL)
    assert again.returncode == 0, again.stderr
    assert json.loads((folder / "eval.json").read_text()) == first
    both = evaluate(f"run={folder}", "sample=false", f"compare=[{folder}]", *SMALL)
    assert both.returncode == 0, both.stderr
    (pair,) = json.loads((folder / "eval.json").read_text())["comparisons"]
    assert pair["second"] == "vpo (run)"
    assert pair["figures"]["best@1"] == {"difference": 0.0, "low": 0.0, "high": 0.0, "p": 1.0}


def test_killed_sampling_goes_on_and_gives_the_same_answers(
    run_folder: Path, tmp_path: Path
) -> None:
    settings = [f"run={run_folder}", *SMALL, "evaluation.calls_at_a_time=4"]
    assert evaluate(*settings, f"output={tmp_path / 'whole'}").returncode == 0
    killed = tmp_path / "killed"
    parts = killed / "pools" / "vpo_T0.7.parts"
    process = subprocess.Popen(command(*settings, f"output={killed}"), stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(list(parts.glob("0*.parquet"))) < 2:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = len(list(parts.glob("0*.parquet")))
    assert 2 <= done < 12
    assert not (killed / "pools" / "vpo_T0.7.parquet").exists()
    resumed = evaluate(*settings, f"output={killed}")
    assert resumed.returncode == 0, resumed.stderr
    assert f"vpo_T0.7: {2 * done + 2} of 24 prompts" in resumed.stdout
    assert "vpo_T0.7: 2 of 24" not in resumed.stdout
    name = Path("pools") / "vpo_T0.7.parquet"
    assert texts(killed / name) == texts(tmp_path / "whole" / name)
    assert not parts.exists()


def test_any_model_folder_and_checkpoint_is_evaluated_within_a_token_budget(
    run_folder: Path, tmp_path: Path
) -> None:
    task = ["task.size=5", "rollout.sampling.max_tokens=24", "evaluation.num_tokens=100"]
    exported = evaluate(
        f"policy={run_folder / 'policy'}", "warmup=none", f"output={tmp_path / 'a'}", *task, *SMALL
    )
    assert exported.returncode == 0, exported.stderr
    pools = read_pools(tmp_path / "a" / "pools" / "policy_T0.7.parquet")
    assert all(sum(pool.tokens) <= 100 for pool in pools)
    assert len({len(pool.tokens) for pool in pools}) > 1
    checkpoint = run_folder / "checkpoints" / "last.ckpt"
    loaded = evaluate(
        f"policy={checkpoint}", "evaluation.num_tokens=100", f"output={tmp_path / 'b'}", *SMALL
    )
    assert loaded.returncode == 0, loaded.stderr
    assert texts(tmp_path / "b" / "pools" / "vpo_T0.7.parquet") == texts(
        tmp_path / "a" / "pools" / "policy_T0.7.parquet"
    )


def test_a_hundred_mazes_take_less_than_twenty_seconds(run_folder: Path, tmp_path: Path) -> None:
    size = ("evaluation.num_prompts=100", "evaluation.num_answers=30")
    score = "+evaluation.metrics.weights.gold_first={gold: 2, diamond: 1}"
    done = evaluate(f"run={run_folder}", f"output={tmp_path}", SMALL[-1], *size)
    assert done.returncode == 0, done.stderr
    sampling = re.search(r"pools of 100 prompts in ([\d.]+) s", done.stdout)
    assert sampling
    started = time.perf_counter()
    again = evaluate(f"run={run_folder}", f"output={tmp_path}", "sample=false", score, *size)
    assert again.returncode == 0, again.stderr
    # The figures' time holds the start of a process, which the model's is not counted in.
    assert float(sampling[1]) + time.perf_counter() - started < 20
    figures = json.loads((tmp_path / "eval.json").read_text())["evaluations"][0]["figures"]
    assert figures["best@3/gold_first"]["mean"] > 0


def test_wrong_input_is_one_line(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = [f"run={run_folder}", f"output={tmp_path}", *SMALL]
    for overrides, named in (
        ([f"run={tmp_path}"], "run="),
        (["policy=nowhere/to/be/found/at/all"], "policy="),
        (["policy=nowhere.ckpt"], "policy="),
        ([*ours, "evaluation.num_answers=7"], "evaluation.num_answers"),
        ([*ours, "evaluation.seeds=[1,1]"], "evaluation.seeds"),
        ([*ours, "evaluation.metrics.solved={silver: 1.0}"], "evaluation.metrics.solved"),
        ([*ours, "evaluation.temperatures=[0]"], "evaluation.temperatures"),
        ([*ours, "sample=false"], "no pools"),
        ([*ours, "compare=here"], "compare="),
    ):
        assert entry.run(job, "eval", overrides) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert named in line


def test_alarms_are_printed_logged_and_summarised(run_folder: Path) -> None:
    summary = json.loads((run_folder / "summary.json").read_text())
    records = read_metrics(run_folder)
    (alarm,) = (alarm for alarm in summary["alarms"] if alarm["name"] == "kl_runaway")
    first = alarm["first_step"]
    text = (run_folder / "stdout.txt").read_text()
    assert f"alarm at step {first}: {alarm['message']}" in text
    assert [record["alarm/kl_runaway"] for record in records] == [
        float(record["step"] >= first) for record in records
    ]
    thresholds = AlarmThresholds(window=2, kl=1e-9)
    found = find_alarms(records, summary["objectives"], thresholds)
    assert [(a.name, a.first_step, a.last_step, a.message) for a in found] == [
        (a["name"], a["first_step"], a["last_step"], a["message"]) for a in summary["alarms"]
    ]


def test_cost_is_counted_by_step_and_in_total(
    run_folder: Path, read_ids: Callable[[Path], list[list[int]]]
) -> None:
    summary = json.loads((run_folder / "summary.json").read_text())
    records = read_metrics(run_folder)
    cost = summary["cost"]
    generated = sum(len(ids) for ids in read_ids(run_folder))
    assert cost["generated_tokens"] == generated
    assert sum(record["cost/generated_tokens"] for record in records) == generated
    assert 0 < cost["trained_tokens"] <= generated  # groups without signal are skipped
    assert cost["prompt_tokens"] == sum(record["rollout/prompt_tokens"] * 4 for record in records)
    assert 0 < cost["scorer_calls"] <= 4 * 4 * 4 * 3
    assert cost["device_hours"] * 3600 == pytest.approx(
        sum(record["time/device_seconds"] for record in records)
    )
    assert cost["process_mib"] > 100
    assert cost["device_mib"] is None


@pytest.fixture
def read_ids() -> Callable[[Path], list[list[int]]]:
    from vpo_lightning.rollout.store import read_rollouts

    return lambda folder: [r["completion_ids"] for r in read_rollouts(folder / "rollouts")]
