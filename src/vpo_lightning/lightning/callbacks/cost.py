"""The callback that counts what a step costs: tokens, scorer calls, device time, memory."""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from typing import Any, cast

import lightning as L
import torch
from torch import Tensor

from vpo_lightning.lightning.datamodule import RolloutDataModule
from vpo_lightning.rollout.batch import MicroBatch, RolloutBatch

_COUNTS = ("prompt_tokens", "generated_tokens", "trained_tokens", "scorer_calls")


class StepCost(L.Callback):
    """Logs ``cost/<count>``, ``time/device_seconds`` and ``memory/<kind>_mib`` for each step.

    Counts are sums over processes, memory is the largest of them. Nothing random is touched.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._trained: list[Tensor] = []
        self._started = 0.0

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Listens to the data module."""
        cast(RolloutDataModule, cast(Any, trainer).datamodule).listeners.append(self._note)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Starts the clock of the step."""
        self._counts.clear()
        self._trained.clear()
        self._started = time.perf_counter()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: MicroBatch, batch_idx: int
    ) -> None:
        """Counts the completion tokens of a micro-batch, once for each epoch that it is used in."""
        self._trained.append(batch.tokens.completion_lengths.sum())

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Logs the step's cost."""
        self._counts["trained_tokens"] = int(sum(self._trained))
        seconds = time.perf_counter() - self._started
        counts = [float(self._counts[name]) for name in _COUNTS]
        sums = torch.tensor([*counts, seconds], dtype=torch.float64)
        peaks = torch.tensor([process_mib(), device_mib(pl_module.device)])
        if trainer.world_size > 1:
            place = pl_module.device
            sums = cast(Tensor, trainer.strategy.reduce(sums.to(place), reduce_op="sum"))
            peaks = cast(Tensor, trainer.strategy.reduce(peaks.to(place), reduce_op="max"))
        keys = [*(f"cost/{name}" for name in _COUNTS), "time/device_seconds"]
        figures = dict(zip(keys, sums.tolist(), strict=True))
        figures["memory/process_mib"], device = peaks.tolist()
        if pl_module.device.type == "cuda":
            figures["memory/device_mib"] = device
        for key, value in figures.items():
            pl_module.log(key, value, on_step=False, on_epoch=True, batch_size=1)

    def _note(self, batch: RolloutBatch) -> None:
        self._counts.update(batch.cost)


def process_mib() -> float:
    """Peak resident memory of this process in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def device_mib(device: torch.device) -> float:
    """Peak memory of tensors on a CUDA device in MiB; 0 on another device."""
    if device.type != "cuda":
        return 0.0
    return torch.cuda.max_memory_allocated(device) / (1 << 20)
