"""The callback that raises alarms while training goes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import lightning as L
from lightning.pytorch.callbacks import Checkpoint

from vpo_lightning.evaluation.alarms import Alarm, AlarmThresholds, AlarmWatch
from vpo_lightning.lightning.loggers import read_metrics
from vpo_lightning.lightning.module import VPOModule


class TrainingAlarms(Checkpoint):
    """Prints an alarm when it is raised, and logs ``alarm/<name>`` at each step.

    Lightning calls this kind of callback after the module has logged its step, so the figures are
    those of all processes.

    Args:
        folder: The run folder; a resumed run goes on from its ``metrics.jsonl``.
        objectives: Names of the task's objectives.
        thresholds: When to raise.
    """

    def __init__(
        self, folder: Path, objectives: Sequence[str], thresholds: AlarmThresholds
    ) -> None:
        self._folder = folder
        self._watch = AlarmWatch(objectives, thresholds)

    @property
    def alarms(self) -> list[Alarm]:
        """All alarms of the run so far."""
        return self._watch.alarms

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Takes up the steps before a resumed one."""
        if (self._folder / "metrics.jsonl").exists():
            for record in read_metrics(self._folder):
                self._watch.add(record)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Looks at the step's figures."""
        module = cast(VPOModule, pl_module)
        raised = self._watch.add({**module.figures, "step": module.step})
        for name, stands in self._watch.standing().items():
            pl_module.log(
                f"alarm/{name}", float(stands), on_step=False, on_epoch=True, batch_size=1
            )
        if trainer.is_global_zero:
            for alarm in raised:
                print(f"alarm at step {alarm.first_step}: {alarm.message}", flush=True)
