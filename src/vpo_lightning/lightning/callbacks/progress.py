"""The progress of training in the terminal: one bar over all steps, or plain lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, cast

import lightning as L
from lightning.pytorch.callbacks import ProgressBar
from tqdm import tqdm

from vpo_lightning.lightning.module import VPOModule


class StepProgress(ProgressBar):
    """Shows step, time left, tokens per second, reward, diversity and KL.

    Args:
        total_steps: Training steps of the run.
        seconds_between_lines: Without a terminal, a line is printed at most this often.
    """

    def __init__(self, total_steps: int, seconds_between_lines: float = 15.0) -> None:
        super().__init__()
        self._total = total_steps
        self._pause = seconds_between_lines
        self._bar: Any = None
        self._is_enabled = True
        self._last_line = 0.0
        self._started = 0.0
        self._first_step = 0

    def disable(self) -> None:
        """Shows nothing; Lightning calls this on all processes but the first."""
        self._is_enabled = False

    def enable(self) -> None:
        """Shows the progress again."""
        self._is_enabled = True

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Opens the bar at the step where training starts or resumes."""
        if not self._is_enabled:
            return
        self._first_step = cast(VPOModule, pl_module).step
        self._started = time.monotonic()
        if sys.stderr.isatty():
            self._bar = tqdm(
                total=self._total, initial=self._first_step, unit="step", dynamic_ncols=True
            )

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Advances the bar; a callback runs before the module counts and logs its step."""
        if not self._is_enabled:
            return
        module = cast(VPOModule, pl_module)
        text = summary_line(module.record.figures())
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(1)
            return
        now, done = time.monotonic(), module.step + 1
        if now - self._last_line < self._pause and done not in (1, self._total):
            return
        self._last_line = now
        left = (now - self._started) / (done - self._first_step) * (self._total - done)
        print(f"step {done}/{self._total}, {left / 60:.1f} min left: {text}", flush=True)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Closes the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def summary_line(figures: Mapping[str, float]) -> str:
    """The key figures of a step in one line."""
    shown = (
        ("reward", "rollout/set_reward", ".3f"),
        ("diversity", "rollout/diversity", ".2f"),
        ("tokens/s", "time/tokens_per_second", ".0f"),
        ("truncated", "rollout/truncated_fraction", ".2f"),
        ("no signal", "rollout/no_signal_fraction", ".2f"),
    )
    return ", ".join(f"{name} {figures[key]:{form}}" for name, key, form in shown if key in figures)
