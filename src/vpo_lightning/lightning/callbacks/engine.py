"""The callback that owns the rollout engine and hands it the policy's weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import lightning as L
from lightning.pytorch.utilities import rank_zero_warn
from torch import distributed, nn

from vpo_lightning.lightning.datamodule import RolloutDataModule
from vpo_lightning.lightning.module import VPOModule
from vpo_lightning.policy.weights import full_weights
from vpo_lightning.rollout.batch import RolloutBatch
from vpo_lightning.rollout.canary import Canary
from vpo_lightning.rollout.engine import RolloutEngine
from vpo_lightning.rollout.handover import HandoverSettings, within_seconds
from vpo_lightning.rollout.replay import ReplayEngine


class RolloutEngineCallback(L.Callback):
    """Builds the engine once training has set up its processes, and keeps its weights current.

    Weights are pushed after the last update of a rollout batch and before the next generation, and
    at the start of a resumed run. After each hand-over, and at the start, a canary compares log-
    probabilities of the engine with the policy's; the figure is logged with the rollouts sampled
    from these weights, as ``rollout/logprob_mismatch``.

    Args:
        build_engine: Makes the engine, holding the start policy's weights (version 0).
        handover: Limits of the hand-over.
    """

    def __init__(
        self, build_engine: Callable[[], RolloutEngine], handover: HandoverSettings
    ) -> None:
        self._build_engine = build_engine
        self._handover = handover
        self.engine: RolloutEngine | None = None
        self._data: RolloutDataModule | None = None
        self._canary: Canary | None = None
        self._mismatch: float | None = None

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Builds the engine and gives it to the data module, on every process.

        Raises:
            RuntimeError: The engine has put this process into a group without the others.
        """
        data = cast(RolloutDataModule, cast(Any, trainer).datamodule)
        self._data, self.engine = data, self._build_engine()
        _check_group(trainer.world_size)
        data.collector.engine = self.engine
        if not isinstance(self.engine, ReplayEngine):
            row = data.collector.task.rows("train")[0]
            self._canary = Canary(
                data.collector.encode_row(row),
                self.engine.positions,
                data.collector.sampling.temperature,
            )
        data.listeners.insert(0, self._note)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Hands over the weights of a resumed run."""
        module = cast(VPOModule, pl_module)
        if not self.push(module, module.step):
            self._compare(module)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Validation looks at the policy after the step's update."""
        self.push(cast(VPOModule, pl_module), cast(VPOModule, pl_module).step + 1)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Hands over the weights after the last update of a rollout batch.

        Lightning calls callbacks before the module's own hook, which counts the step.
        """
        self.push(cast(VPOModule, pl_module), cast(VPOModule, pl_module).step + 1)

    def push(self, module: VPOModule, version: int) -> bool:
        """Hands over the policy's weights; False if the engine has that version already.

        Raises:
            RuntimeError: Engine and policy disagree by more than the limit afterwards.
            TimeoutError: It took too long.
        """
        engine = cast(RolloutEngine, self.engine)
        if self._data is not None:  # the engine may be sampling the next batch
            module.record.add_seconds("generate", self._data.ahead.wait())
        if engine.version == version:
            return False
        weights = full_weights(cast(nn.Module, module.policy), module.compute_dtype)
        try:
            within_seconds(
                self._handover.timeout,
                f"handing the weights of version {version} to the engine",
                lambda: engine.load_weights(weights, version),
            )
        except TimeoutError:
            self.engine = None  # a thread may still be at work on it
            raise
        self._compare(module)
        return True

    def close(self) -> None:
        """Closes the engine."""
        if self._data is not None:
            self._data.ahead.abandon(self._handover.timeout)
        if self.engine is not None:
            self.engine.close()
            self.engine = None

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Closes the engine when training fails."""
        self.close()

    def _compare(self, module: VPOModule) -> None:
        """Runs the canary; warns and stops as the limits say."""
        if self._canary is None:
            return
        engine = cast(RolloutEngine, self.engine)
        self._mismatch = self._canary.mismatch(engine, module.policy_logprobs)
        warn, stop = self._handover.limits(str(module.compute_dtype).removeprefix("torch."))
        found = (
            f"engine and policy of version {engine.version} differ by {self._mismatch:.2g} nats in "
            "the log-probability of a token"
        )
        if not self._mismatch <= stop:
            raise RuntimeError(
                f"{found}, above {stop:g}: the engine samples from other weights; if rounding "
                "explains it, raise rollout.handover.stop"
            )
        if self._mismatch > warn:
            rank_zero_warn(f"{found}, above rollout.handover.warn ({warn:g})")

    def _note(self, batch: RolloutBatch) -> None:
        if self._mismatch is not None:
            batch.metrics["rollout/logprob_mismatch"] = self._mismatch


def _check_group(world_size: int) -> None:
    """An engine that is built too early makes a group of its own, which the trainer then uses."""
    found = distributed.get_world_size() if distributed.is_initialized() else 1
    if found != world_size:
        raise RuntimeError(
            f"building the engine left a group of {found} processes where the trainer has "
            f"{world_size}: each process would train by itself; build the engine in on_fit_start"
        )
