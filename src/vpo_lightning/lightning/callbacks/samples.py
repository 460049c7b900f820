"""The callback that stores every rollout."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import lightning as L

from vpo_lightning.lightning.datamodule import RolloutDataModule
from vpo_lightning.rollout.batch import RolloutBatch
from vpo_lightning.rollout.store import write_rollouts
from vpo_lightning.rollout.transcript import write_transcript


class RolloutWriter(L.Callback):
    """Writes each step's rollouts to ``rollouts/*.parquet`` of the run folder, some as ``.md`` too.

    Args:
        folder: The rollouts folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rank = 0

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Listens to the data module."""
        self._rank = trainer.global_rank
        cast(RolloutDataModule, cast(Any, trainer).datamodule).listeners.append(self._write)

    def _write(self, batch: RolloutBatch) -> None:
        write_rollouts(batch, self._folder, self._rank)
        write_transcript(batch, self._folder, self._rank)
