"""Run folders shared by the tests of the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.written_runs import write_maze_run


@pytest.fixture(scope="session")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep's folder: vpo and grpo, two seeds each, evaluated. Read only."""
    folder = tmp_path_factory.mktemp("sweep")
    for number, (name, seed) in enumerate([("vpo", 0), ("grpo", 0), ("vpo", 1), ("grpo", 1)]):
        write_maze_run(folder / f"{number}_maze_{name}_seed{seed}", name, seed)
    return folder
