"""What the README says is what is there, and its commands compose."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[str]:
    text = "\n".join(blocks("bash")).replace("\\\n", " ")
    lines = [line.split("  #")[0].strip() for line in text.splitlines()]
    return [line for line in lines if line.startswith("vpo-train")]


def test_every_option_of_every_group_is_listed() -> None:
    rows = dict(re.findall(r"^\| `(\w+)`[^|]*\| ([^|]*) \|$", README, re.MULTILINE))
    for group, options in rows.items():
        there = {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")}
        assert set(re.findall(r"`(\w+)`", options)) == there, group
    groups = {path.name for path in (ROOT / "conf").iterdir() if any(path.glob("*.yaml"))}
    assert set(rows) == groups


@pytest.mark.parametrize("command", commands())
def test_every_command_composes(command: str, tmp_path: Path) -> None:
    words = [word for word in shlex.split(command)[1:] if word != "-m"]
    if "resume=true" in words:
        return  # run for real in tests/runs/test_training.py
    words = [word.split(",")[0] if "[" not in word else word for word in words]
    flags = [] if "--cfg" in words else ["--cfg", "job"]
    result = subprocess.run(
        [sys.executable, "-m", "vpo_lightning.train", *flags, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_the_formulas_in_the_readme_give_the_values_it_states() -> None:
    (example,) = (block for block in blocks("python") if "set_reward(" in block)
    names: dict[str, object] = {}
    exec(example, names)
    assert [round(value, 4) for value in names["scores"].tolist()] == [0.675, 0.5]  # type: ignore[attr-defined]


def test_linked_files_exist() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


@pytest.mark.slow
def test_the_domain_of_the_readme_trains(tmp_path: Path, warmup_cache: Path) -> None:
    task = next(block for block in blocks("python") if "class Haiku" in block)
    (tmp_path / "my_tasks.py").write_text(task)
    (tmp_path / "my_conf" / "task").mkdir(parents=True)
    (tmp_path / "my_conf" / "task" / "haiku.yaml").write_text(blocks("yaml")[0])
    from tests.text_model import save_text_model

    model = save_text_model(tmp_path / "model")
    line = next(
        line
        for line in "\n".join(blocks("bash")).replace("\\\n", " ").splitlines()
        if "task=haiku" in line
    )
    words = line.replace("<folder>", str(model)).replace("vpo-train", "").split()
    assert words.pop(0) == "PYTHONPATH=."
    small = (
        "trainer.max_steps=2",
        "trainer.validate_every=0",
        "rollout.prompts_per_step=1",
        "rollout.group_size=2",
        "rollout.sampling.max_tokens=16",
        "evaluation.num_answers=3",
        "model.dtype=float32",
        "hydra.run.dir=run",
    )
    result = subprocess.run(
        [sys.executable, "-m", "vpo_lightning.train", *words, *small],
        cwd=tmp_path,
        env={**__import__("os").environ, "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "run" / "policy" / "config.json").exists()
