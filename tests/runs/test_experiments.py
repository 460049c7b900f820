"""Every <task>_smoke experiment runs to its end, and tells what was scored and why."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Train
from tests.text_model import save_text_model
from vpo_lightning.rollout.store import read_rollouts

TASKS = ["eureqa", "livecodebench", "maze", "musique", "toolrl", "ultrafeedback"]
SMOLLM2 = Path("~/.cache/vpo-lightning/models/smollm2_135m").expanduser()


@pytest.fixture(scope="session")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of bytes, in which prompts are long."""
    folder = tmp_path_factory.mktemp("model") / "text"
    return save_text_model(folder, max_position_embeddings=8192)


def records(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def check_run(run: Path, done: subprocess.CompletedProcess[str]) -> list[dict]:
    """The rollouts of a finished run with finite losses and a page for every step."""
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [r["train/loss"] for r in records(run) if "train/loss" in r]
    assert len(losses) == 2
    assert all(math.isfinite(loss) for loss in losses)
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"
    assert len(list((run / "rollouts").glob("*.md"))) == 2
    rollouts = list(read_rollouts(run / "rollouts"))
    assert len(rollouts) == 2 * 2 * 4
    for rollout in rollouts:
        for answer in rollout["answers"]:
            assert len(answer["rewards"]) == len(rollout["objectives"])
            # What an answer says of itself, and what was wanted.
            assert answer["text"] is None or answer["explanation"]
    return rollouts


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_the_smoke_experiment_of_a_task_runs_to_its_end(
    task: str, train: Train, tmp_path: Path, text_model: Path
) -> None:
    done = train(
        f"task={task}",
        f"experiment={task}_smoke",
        "model=pretrained",
        f"model.path={text_model}",
        "model.dtype=float32",
        "warmup.steps=2",
        "rollout.max_prompt_tokens=8000",
        "rollout.sampling.max_tokens=24",
        "report_rollouts=null",
        "hydra.run.dir=run",
        small=False,
    )
    check_run(tmp_path / "run", done)


@pytest.mark.slow
@pytest.mark.timeout(1200)  # three minutes of computing, on a machine that others use too
def test_smollm2_answers_in_the_form_it_was_shown(tmp_path: Path) -> None:
    assert SMOLLM2.is_dir(), "SmolLM2 is missing; run python scripts/get_smollm2.py"
    command = ["task=ultrafeedback", "experiment=ultrafeedback_smoke", "hydra.run.dir=run"]
    done = subprocess.run(
        [sys.executable, "-m", "vpo_lightning.train", *command, f"cache_dir={tmp_path / 'cache'}"],
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=1100,
    )
    rollouts = check_run(tmp_path / "run", done)
    answers = [answer for rollout in rollouts for answer in rollout["answers"]]
    assert sum(answer["is_parsed"] for answer in answers) > len(answers) / 2
    assert any("chose" in answer["explanation"] for answer in answers if answer["text"])
    assert len({tuple(answer["rewards"]) for answer in answers}) > 2
