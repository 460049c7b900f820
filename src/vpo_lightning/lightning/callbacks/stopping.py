"""Checkpoints at step boundaries; Ctrl-C and SIGTERM end a run at the next one."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType
from typing import Any, cast

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint

from vpo_lightning.lightning.module import VPOModule


class GracefulStop(L.Callback):
    """Turns the first SIGINT or SIGTERM into a stop after the current step; the second one kills.

    All processes stop at the same step: the request is shared at each step's end.
    """

    def __init__(self) -> None:
        self.is_requested = False
        self._previous: dict[int, Any] = {}

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Takes over the signals."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._request)

    def _request(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.is_requested:
            os._exit(128 + number)
        self.is_requested = True
        print("\nStopping after this step; press Ctrl-C again to stop at once.", flush=True)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Asks the trainer to stop if any process was asked to."""
        flag = torch.tensor(float(self.is_requested), device=pl_module.device)
        if trainer.world_size > 1:
            flag = trainer.strategy.reduce(flag, reduce_op="sum")
        self.is_requested = bool(flag > 0)
        if self.is_requested:
            trainer.should_stop = True

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Gives the signals back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)


class StepCheckpoint(Checkpoint):
    """Saves ``last.ckpt`` every so many steps, at the last step, and when a stop was asked for.

    Lightning calls this kind of callback after the module has counted its step, so a checkpoint
    always stands at a step boundary.

    Args:
        folder: The checkpoints folder.
        every: Steps between two checkpoints.
        stop: Says whether a stop was asked for.
    """

    def __init__(self, folder: Path, every: int, stop: GracefulStop) -> None:
        self._path = folder / "last.ckpt"
        self._every = every
        self._stop = stop

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Saves if it is time."""
        step = cast(VPOModule, pl_module).step
        if step % self._every == 0 or step == trainer.max_epochs or self._stop.is_requested:
            trainer.save_checkpoint(self._path)
