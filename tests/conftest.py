"""Fixtures shared by the tests that start whole runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SMALL = (
    "task.size=5",
    "warmup.steps=40",
    "warmup.prompts_per_step=8",
    "rollout.prompts_per_step=4",
    "rollout.group_size=4",
    "rollout.sampling.max_tokens=24",
    "trainer.max_steps=3",
    "trainer.validate_every=0",
    "trainer.checkpoint_every=1",
    "evaluation.num_prompts=0",
    "report_rollouts=null",
)
"""Overrides of a run of seconds, without validation and evaluation."""

Train = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def warmup_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of warm-ups shared by the session."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def train_command(warmup_cache: Path) -> Callable[..., list[str]]:
    """The command line of a small run."""

    def command(*overrides: str, small: bool = True) -> list[str]:
        cache = [] if "resume=true" in overrides else [f"cache_dir={warmup_cache}"]
        settings = [*(SMALL if small else ()), *cache, *overrides]
        flags = [setting for setting in settings if setting.startswith("-")]
        settings = [setting for setting in settings if not setting.startswith("-")]
        return [sys.executable, "-m", "vpo_lightning.train", *flags, *settings]

    return command


@pytest.fixture
def train(train_command: Callable[..., list[str]], tmp_path: Path) -> Train:
    """Runs vpo-train with a small run's settings in a temporary folder."""

    def run(*overrides: str, small: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            train_command(*overrides, small=small),
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    return run
