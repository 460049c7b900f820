"""A sweep of 10 runs with 100,000 rollouts is reported in seconds and in little memory."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from tests.report.written_runs import MAZE, config, write_run, write_summary
from vpo_lightning.prompting import MultiAnswer
from vpo_lightning.tasks.maze.demonstrations import RouteMix
from vpo_lightning.tasks.maze.task import MazeTask

RUNS, STEPS, PROMPTS, GROUP = 10, 50, 25, 8
MOST_SECONDS, MOST_MIB = 30, 1536


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_sweep_of_100000_rollouts_is_reported_in_half_a_minute(tmp_path: Path) -> None:
    task = MazeTask(**{key: value for key, value in MAZE.items() if key != "_target_"})
    first = tmp_path / "sweep" / "0_vpo"
    answer = RouteMix(detour_probabilities=(0.0,))
    cfg = config("vpo", 0, MAZE)
    write_run(first, cfg, task, MultiAnswer(3), answer, Random(0), STEPS, PROMPTS, GROUP)
    write_summary(first)
    for seed in range(1, RUNS):
        folder = tmp_path / "sweep" / f"{seed}_vpo"
        shutil.copytree(first, folder)
        text = (folder / "config.yaml").read_text()
        (folder / "config.yaml").write_text(text.replace("seed: 0", f"seed: {seed}"))
    program = (
        "import resource, sys; from vpo_lightning.report import main; status = main(sys.argv[1:]);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024); sys.exit(status)"
    )
    start = time.perf_counter()
    command = [sys.executable, "-c", program, str(tmp_path / "sweep")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    assert done.returncode == 0, done.stderr
    mib = int(done.stdout.split()[-1])
    size = (tmp_path / "sweep" / "report.html").stat().st_size
    print(f"{seconds:.1f} s, {mib} MiB, page of {size / 2**20:.2f} MiB")
    assert seconds < MOST_SECONDS
    assert mib < MOST_MIB
    assert size < 5 * 2**20
