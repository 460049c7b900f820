"""What a run does when a hand-over is late, or engine and policy disagree afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Train
from tests.runs.records import metrics

pytestmark = pytest.mark.slow


def test_a_mismatch_above_the_limit_stops_the_run(train: Train, tmp_path: Path) -> None:
    limits = ("rollout.handover.warn=1e-12", "rollout.handover.stop=1e-12")
    run = train("hydra.run.dir=run", *limits)
    assert run.returncode not in (0, None)
    assert "engine and policy of version 0 differ" in run.stderr
    assert "raise rollout.handover.stop" in run.stderr
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_mismatch_above_the_warning_is_said_and_logged(train: Train, tmp_path: Path) -> None:
    run = train("hydra.run.dir=run", "rollout.handover.warn=1e-12", "trainer.max_steps=2")
    assert run.returncode == 0, run.stderr
    assert "above rollout.handover.warn (1e-12)" in run.stderr
    for step in metrics(tmp_path / "run"):
        assert 0 < step["rollout/logprob_mismatch"] < 1e-4


def test_a_late_hand_over_stops_the_run(train: Train) -> None:
    run = train("rollout.handover.timeout=1e-9")
    assert run.returncode not in (0, None)
    assert "handing the weights of version 1 to the engine took longer" in run.stderr
    assert "rollout.handover.timeout=1e-09" in run.stderr


def test_an_engine_of_few_positions_is_compared_after_shorter_prompts(
    train: Train, tmp_path: Path
) -> None:
    # The long prompt and its completion are 176 tokens, the rollouts less than 100.
    run = train("hydra.run.dir=run", "engine.batch_tokens=100", "trainer.max_steps=1")
    assert run.returncode == 0, run.stderr
    assert metrics(tmp_path / "run")[0]["rollout/logprob_mismatch"] < 1e-4
