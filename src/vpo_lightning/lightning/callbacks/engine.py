"""The callback that owns the rollout engine and hands it the policy's weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

import lightning as L
from torch import nn

from vpo_lightning.lightning.datamodule import RolloutDataModule
from vpo_lightning.lightning.module import VPOModule
from vpo_lightning.policy.weights import full_weights
from vpo_lightning.rollout.engine import RolloutEngine


class RolloutEngineCallback(L.Callback):
    """Builds the engine once training has set up its processes, and keeps its weights current.

    Weights are pushed after the last update of a rollout batch and before the next generation, and
    at the start of a resumed run.

    Args:
        build_engine: Makes the engine, holding the start policy's weights (version 0).
    """

    def __init__(self, build_engine: Callable[[], RolloutEngine]) -> None:
        self._build_engine = build_engine
        self.engine: RolloutEngine | None = None

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Builds the engine and gives it to the data module, on every process."""
        self.engine = self._build_engine()
        cast(RolloutDataModule, cast(Any, trainer).datamodule).collector.engine = self.engine

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Hands over the weights of a resumed run."""
        self.push(cast(VPOModule, pl_module), cast(VPOModule, pl_module).step)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Validation looks at the policy after the step's update."""
        self.push(cast(VPOModule, pl_module), cast(VPOModule, pl_module).step + 1)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Hands over the weights after the last update of a rollout batch.

        Lightning calls callbacks before the module's own hook, which counts the step.
        """
        self.push(cast(VPOModule, pl_module), cast(VPOModule, pl_module).step + 1)

    def push(self, module: VPOModule, version: int) -> None:
        """Hands over the policy's weights unless the engine has that version already."""
        engine = cast(RolloutEngine, self.engine)
        if engine.version == version:
            return
        start = time.perf_counter()
        engine.load_weights(full_weights(cast(nn.Module, module.policy)), version)
        module.seconds["handover"] = time.perf_counter() - start

    def close(self) -> None:
        """Closes the engine."""
        if self.engine is not None:
            self.engine.close()
            self.engine = None

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Closes the engine when training fails."""
        self.close()
