"""A reward that hangs, crashes or returns nonsense does not stop a run."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.text_model import save_text_model
from vpo_lightning.rollout.store import read_rollouts

ROOT = Path(__file__).parents[2]
YAML = """\
# A reward full of faults: vpo-train --config-dir conf task=mixed
_target_: tests.task_layer.bad_task.MixedTask
"""


@pytest.mark.slow
def test_a_run_with_a_bad_reward_ends_with_finite_losses_and_counts(tmp_path: Path) -> None:
    (tmp_path / "conf" / "task").mkdir(parents=True)
    (tmp_path / "conf" / "task" / "mixed.yaml").write_text(YAML)
    model = save_text_model(tmp_path / "model")
    settings = [
        "task=mixed",
        "model=pretrained",
        "model.dtype=float32",
        "warmup=none",
        "optimizer=adamw",
        "rollout=text",
        "ablation=grpo",
        "evaluation=default",
        "trainer.max_steps=2",
        "trainer.validate_every=0",
        "rollout.prompts_per_step=2",
        "rollout.group_size=4",
        "rollout.sampling.max_tokens=4",
        "evaluation.num_prompts=1",
        "evaluation.num_answers=3",
        "evaluation.metrics.ks=[1,3]",
        "scoring.deadline=0.5",
        "scoring.workers=2",
        "report_rollouts=null",
        "hydra.run.dir=run",
    ]
    command = ["--config-dir", "conf", f"model.path={model}", *settings]
    done = subprocess.run(
        [sys.executable, "-m", "vpo_lightning.train", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "run"
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [record["train/loss"] for record in records if "train/loss" in record]
    assert len(losses) == 2
    assert all(map(math.isfinite, losses))
    answers = [a for rollout in read_rollouts(run / "rollouts") for a in rollout["answers"]]
    failed = [answer for answer in answers if answer["error"] is not None]
    assert 0 < len(failed) < len(answers)
    assert all(answer["rewards"] == [0.0, 0.0] for answer in failed)
    figures = json.loads((run / "summary.json").read_text())
    assert figures["scoring"]["score_failures"] >= len(failed)
    assert figures["training"]["rollout/score_failures"] > 0
    assert "could not be scored and gets 0.0 (failure 1)" in (run / "log.txt").read_text()
