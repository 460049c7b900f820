"""What Weights & Biases gets of a finished run, offline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lightning.pytorch.loggers import CSVLogger, WandbLogger

from tests.report.written_runs import write_maze_run
from vpo_lightning.lightning.media import log_media


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_maze_run(tmp_path_factory.mktemp("run") / "vpo", steps=3)


@pytest.mark.slow
def test_samples_figures_and_charts_reach_wandb(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    logger = WandbLogger(project="test", save_dir=str(tmp_path), offline=True)
    log_media([logger], run)
    wandb.finish()
    tables = {path: json.loads(path.read_text()) for path in tmp_path.rglob("*.table.json")}
    columns = [set(table["columns"]) for table in tables.values()]
    assert any({"step", "prompt", "text", "advantage"} <= names for names in columns)
    assert any({"policy", "best@1", "expected_max@3"} <= names for names in columns)
    samples = next(table for table in tables.values() if "advantage" in table["columns"])
    assert len({tuple(row[:3]) for row in samples["data"]}) == 3 * 4 * 4
    assert any("win_share" in str(path) for path in tables)


def test_other_loggers_get_nothing(run: Path, tmp_path: Path) -> None:
    log_media([CSVLogger(str(tmp_path))], run)
    assert not list(tmp_path.rglob("*.json"))
