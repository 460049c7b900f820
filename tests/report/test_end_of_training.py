"""Runs and sweeps end with a report."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Train
from tests.report.reading import Page


@pytest.mark.slow
def test_every_job_and_the_sweep_itself_end_with_a_report(train: Train, tmp_path: Path) -> None:
    done = train("-m", "report_rollouts=4", "seed=0,1", "hydra.sweep.dir=sweep")
    assert done.returncode == 0, done.stderr
    jobs = sorted(tmp_path.glob("sweep/*/report.html"))
    assert len(jobs) == 2
    assert "report of 2 runs: sweep/report.html" in done.stdout
    page = Page(tmp_path / "sweep" / "report.html")
    assert [run["label"] for run in page.data["runs"]] == ["vpo, seed 0", "vpo, seed 1"]
    assert page.samples["rollouts"]["vpo, seed 0"][0]["rollouts"][0]["picture"][0] == "svg"


@pytest.mark.slow
def test_a_run_can_do_without_a_report(train: Train, tmp_path: Path) -> None:
    assert train("trainer.max_steps=1", "hydra.run.dir=run").returncode == 0
    assert (tmp_path / "run" / "summary.json").exists()
    assert not (tmp_path / "run" / "report.html").exists()
