"""A search that is interrupted anywhere ends with the archive of one that ran through."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.search.conftest import RunSearch
from vpo_lightning.searching.best_of_n import BestOfN
from vpo_lightning.searching.events import EventLog
from vpo_lightning.searching.evolve import Evolve
from vpo_lightning.searching.mcts import MCTS
from vpo_lightning.searching.search import Search

EVOLVE = Evolve(shown="chain", parents=1, migrate_every=2)


@pytest.mark.parametrize(
    "search", [BestOfN(calls_per_round=2), MCTS(), EVOLVE], ids=lambda s: type(s).__name__
)
def test_any_beginning_of_the_log_leads_to_the_same_archive(
    run_search: RunSearch, tmp_path: Path, search: Search
) -> None:
    run_search(search, tmp_path / "whole", answers=24)
    log = (tmp_path / "whole" / "events.jsonl").read_bytes()
    archive = (tmp_path / "whole" / "archive.jsonl").read_bytes()
    ends = [i + 1 for i, byte in enumerate(log) if byte == ord("\n")]
    assert len(ends) >= 4
    # Between two rounds, in the middle of a line, one byte before its end, and before everything.
    cuts = [0, 1, ends[0] - 1, *ends[:-1:2], ends[-2] + 37, ends[-1] - 1, ends[-1]]
    for number, cut in enumerate(cuts):
        place = tmp_path / f"cut{number}"
        place.mkdir()
        (place / "events.jsonl").write_bytes(log[:cut])
        run_search(search, place, answers=24)
        assert (place / "archive.jsonl").read_bytes() == archive, cut


def test_equal_seeds_give_equal_archives(run_search: RunSearch, tmp_path: Path) -> None:
    for name in ("one", "two"):
        run_search(EVOLVE, tmp_path / name, answers=12)
    one, two = ((tmp_path / name / "archive.jsonl").read_bytes() for name in ("one", "two"))
    assert one == two


def test_a_torn_record_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"round":0}\n{"round":1}\n{"rou')
    log = EventLog(path)
    assert [record["round"] for record in log.recorded()] == [0, 1]
    log.append({"round": 2})
    log.close()
    assert path.read_bytes() == b'{"round":0}\n{"round":1}\n{"round":2}\n'


def command(policy: Path, out: Path, *settings: str) -> list[str]:
    task = ("task=maze", "task.size=5", "prompts=4", "m=3", "dtype=float64")
    search = ("search=evolve", "search.shown=chain", "budget.answers=60", f"out={out}")
    words = ("sampling.max_tokens=12", f"policy={policy}", *task, *search, *settings)
    return [sys.executable, "-m", "vpo_lightning.search", *words]


@pytest.mark.slow
def test_a_killed_command_is_continued_bit_for_bit(maze_folder: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(command(maze_folder, whole), env=environment, check=True, timeout=120)
    rounds = (whole / "events.jsonl").read_bytes().count(b"\n")
    for least in (1, rounds // 2):
        settings = ("resume=true",) if (killed / "config.yaml").exists() else ()
        process = subprocess.Popen(command(maze_folder, killed, *settings), env=environment)
        log, end = killed / "events.jsonl", time.monotonic() + 100
        while not log.exists() or log.read_bytes().count(b"\n") < least:
            assert time.monotonic() < end
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (killed / "archive.jsonl").exists()
    last = subprocess.run(
        command(maze_folder, killed, "resume=true"), env=environment, timeout=120, check=False
    )
    assert last.returncode == 0
    assert (killed / "archive.jsonl").read_bytes() == (whole / "archive.jsonl").read_bytes()
    other = command(maze_folder, killed, "resume=true", "seed=1")
    refused = subprocess.run(other, env=environment, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "another config (seed)" in refused.stderr


@pytest.mark.slow
def test_ctrl_c_ends_with_what_there_is_and_can_be_continued(
    maze_folder: Path, tmp_path: Path
) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    out = tmp_path / "out"
    process = subprocess.Popen(
        command(maze_folder, out, "budget.answers=100000"), env=environment, stderr=subprocess.PIPE
    )
    while not (out / "events.jsonl").exists() or (out / "events.jsonl").stat().st_size == 0:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"resume=true" in errors
    assert b'"status": "stopped"' in (out / "result.json").read_bytes()
