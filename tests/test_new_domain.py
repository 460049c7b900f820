"""docs/new-domain.md, followed to the letter."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.text_model import save_text_model

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "new-domain.md").read_text(encoding="utf-8")
PROGRAMS = {"vpo-score": "vpo_lightning.score", "vpo-train": "vpo_lightning.train"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def code() -> tuple[str, str]:
    (python,), (yaml,) = blocks("python"), blocks("yaml")
    return python, yaml


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of the page, under the names it gives them."""
    python, yaml = code()
    data, answers, _ = blocks("json")
    (tmp_path / "my_conf" / "task").mkdir(parents=True)
    for name, text in (
        (python.splitlines()[0].removeprefix("# "), python),
        (yaml.splitlines()[0].removeprefix("# "), yaml),
        ("headlines.jsonl", data),
        ("answers.jsonl", answers),
    ):
        (tmp_path / name).write_text(text)
    return tmp_path


def run(folder: Path, line: str, *more: str) -> None:
    """A command of the page, with further overrides."""
    program, *words = shlex.split(line)
    done = subprocess.run(
        [sys.executable, "-m", PROGRAMS[program], *words, *more],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": ".", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def commands() -> list[str]:
    lines = "\n".join(blocks("bash")).replace("\\\n", " ").splitlines()
    assert lines[0] == "export PYTHONPATH=."
    return [line for line in lines[1:] if line]


def test_the_domain_takes_less_than_60_lines_as_the_page_says() -> None:
    lines = [line for text in code() for line in text.splitlines() if line.strip()]
    stated = re.search(r"It is (\d+) lines", PAGE)
    assert stated is not None
    assert len(lines) == int(stated.group(1)) < 60


def test_the_rewards_are_those_that_the_page_shows(folder: Path) -> None:
    run(folder, commands()[0])
    *_, expected = blocks("json")
    found = (folder / "scores.jsonl").read_text()
    assert list(map(json.loads, found.splitlines())) == list(map(json.loads, expected.splitlines()))


@pytest.mark.slow
def test_the_domain_trains_and_tells_why(folder: Path) -> None:
    model = save_text_model(folder / "model")
    run(
        folder,
        commands()[1],
        "model=pretrained",
        f"model.path={model}",
        "model.dtype=float32",
        "warmup.steps=2",
        f"cache_dir={folder / 'cache'}",
    )
    page = (folder / "run" / "rollouts" / "step_000000_rank_0.md").read_text()
    assert "| answer | facts | brevity | best | |" in page
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["scoring"]["score_failures"] == 0
    assert summary["status"] == "finished"
