"""The LightningModule: policy, reference policy, loss; automatic optimization."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn

from vpo_lightning.core.seeding import derive_seed
from vpo_lightning.core.types import TokenBatch
from vpo_lightning.lightning.objective import PolicyObjective
from vpo_lightning.lightning.step_record import StepRecord
from vpo_lightning.policy.logprobs import Logprobs
from vpo_lightning.policy.lora import adapted_layers
from vpo_lightning.policy.reference import ReferencePolicy, evaluating
from vpo_lightning.policy.sharding import is_sharded, shard
from vpo_lightning.rollout.batch import MicroBatch, RolloutBatch, mean_metrics, sum_metrics
from vpo_lightning.rollout.exchange import exchange_between
from vpo_lightning.task import PromptRow

if TYPE_CHECKING:
    from vpo_lightning.lightning.datamodule import RolloutDataModule

VALIDATION_STEP = -1
"""Step number that seeds the rollouts of validation."""
OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class OptimizerSettings:
    """The optimizer and its learning rate over the training steps.

    Attributes:
        build: Makes the optimizer from the trainable parameters.
        warmup_steps: Optimizer steps over which the learning rate rises linearly from zero.
    """

    build: OptimizerFactory
    warmup_steps: int = 0


class VPOModule(L.LightningModule):
    """Trains a policy on credited rollouts.

    One Lightning epoch is one training step of RL. A batch is a `MicroBatch`; its loss is divided
    by the tokens or rows of the whole optimizer step over all processes, so the gradient depends
    neither on micro-batches nor on the number of processes.

    Args:
        load_policy: Loads the start policy; called once, after the processes have been set up.
        objective: The loss.
        optimizer: Optimizer and learning rate.
        logprobs: Computes the log-probabilities of rollouts.
        is_single_update: Whether a rollout batch makes exactly one optimizer step; then the
            log-probabilities before it are those of the update's own forward pass.
        seed: Of dropout, together with step, micro-batch and process.
        staleness: Updates by which the weights that sampled a batch may be behind; 0 is on-policy.

    Attributes:
        step: Completed training steps, which is also the policy version.
        figures: What was logged about the last one.
        record: What this process has noted about the present one.
    """

    def __init__(
        self,
        load_policy: Callable[[], nn.Module],
        objective: PolicyObjective,
        optimizer: OptimizerSettings,
        *,
        logprobs: Logprobs,
        is_single_update: bool = True,
        seed: int = 0,
        staleness: int = 0,
    ) -> None:
        super().__init__()
        self.policy: nn.Module | None = None
        self.step = 0
        self._load_policy = load_policy
        self._objective = objective
        self._optimizer = optimizer
        self._logprobs = logprobs
        self._is_single_update = is_single_update
        self._seed = seed
        self._staleness = staleness
        self._reference: ReferencePolicy | None = None
        self.figures: dict[str, float] = {}
        self.record = StepRecord()
        self._backward_start = self._validation_start = 0.0

    def configure_model(self) -> None:
        """Loads the policy, and the reference if the loss needs one; FSDP shares them out."""
        if self.policy is not None:
            return
        self.policy = self._load_policy().train()
        # Only the adapters are in checkpoints; the rest is the start policy's.
        self.strict_loading = not adapted_layers(self.policy)
        mesh = None if self.device_mesh is None else self.device_mesh["data_parallel"]
        if self._objective.needs_reference:
            self._reference = ReferencePolicy(self.policy, self._logprobs.dtype, mesh)
        if mesh is not None:
            shard(self.policy, mesh, self._logprobs.dtype)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The configured optimizer; with a scheduler if the learning rate warms up."""
        parameters = [p for p in self.parameters() if p.requires_grad]
        optimizer = self._optimizer.build(parameters)
        steps = self._optimizer.warmup_steps
        if steps == 0:
            return optimizer
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda i: min(1.0, (i + 1) / steps)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def on_fit_start(self) -> None:
        """Puts the reference beside the policy."""
        if self._reference is not None:
            self._reference.to(self.device)

    def receive(self, batch: RolloutBatch) -> None:
        """Notes the figures of a new rollout batch.

        Raises:
            RuntimeError: The rollouts were sampled from older weights than is allowed.
        """
        behind = self.step - batch.policy_version
        if not 0 <= behind <= self._staleness:
            raise RuntimeError(
                f"rollouts of policy version {batch.policy_version} reached the update of version "
                f"{self.step}: rollout.staleness={self._staleness} needs the weights handed over "
                "before sampling"
            )
        self.record.add_rollouts(batch)
        if self._staleness:
            self.record.metrics["rollout/staleness"] = float(behind)

    def prepare(self, micro_batch: MicroBatch) -> MicroBatch:
        """Adds what is computed before the first update: old and reference log-probabilities."""
        start = time.perf_counter()
        moved = micro_batch.to(self.device)
        with torch.no_grad():
            if self._reference is not None:
                with self._reference.model() as reference:
                    logprobs, _ = self._logprobs(reference, moved.tokens)
                moved = replace(moved, reference_logprobs=logprobs)
            if not self._is_single_update:
                moved = replace(moved, old_logprobs=self.policy_logprobs(moved.tokens))
        self.record.add_seconds("reference", time.perf_counter() - start)
        return moved

    def policy_logprobs(self, tokens: TokenBatch) -> Tensor:
        """The policy's log-probabilities of completions, without gradient and dropout."""
        policy = cast(nn.Module, self.policy)
        moved = TokenBatch(**{name: ids.to(self.device) for name, ids in vars(tokens).items()})
        with torch.no_grad(), evaluating(policy):
            return self._logprobs(policy, moved)[0]

    @property
    def compute_dtype(self) -> torch.dtype:
        """What the policy's matrix products are computed in."""
        return self._logprobs.dtype or cast(Any, self.policy).dtype

    def training_step(self, batch: MicroBatch, batch_idx: int) -> Tensor:
        """The loss of a micro-batch, scaled so that Lightning's averages keep it exact."""
        start = time.perf_counter()
        # Dropout draws from the global generator, which Lightning and data loaders move as well.
        torch.manual_seed(
            derive_seed(self._seed, "dropout", self.step, batch_idx, self.global_rank)
        )
        trainer = cast(L.Trainer, self.trainer)
        policy = cast(nn.Module, self.policy)
        if batch.advantages.numel() == 0 and not is_sharded(policy):
            loss = sum((p.sum() * 0.0 for p in policy.parameters()), torch.zeros(()))
            self.record.add_seconds("forward", time.perf_counter() - start)
            return cast(Tensor, loss)
        logprobs, entropy = self._logprobs(policy, batch.tokens)
        if batch.advantages.numel() == 0:
            return logprobs.sum()
        loss, sums = self._objective(batch, logprobs, entropy)
        self.record.add_sums(sums)
        self.record.add_seconds("forward", time.perf_counter() - start)
        # Lightning divides by accumulate_grad_batches, and DDP averages over processes.
        scale = trainer.accumulate_grad_batches * trainer.world_size
        return loss / self._objective.divisor(batch) * scale

    def validation_step(self, batch: list[PromptRow], batch_idx: int) -> None:
        """Logs rollouts of held-out prompts: the same seeds and draws at every validation."""
        del batch_idx
        data = cast("RolloutDataModule", cast(Any, self.trainer).datamodule)
        rollouts = data.collector.collect(batch, step=VALIDATION_STEP)
        figures = mean_metrics(self._from_all_processes(rollouts.metrics))
        named = {key.replace("rollout/", "val/"): value for key, value in figures.items()}
        self._log_step(named, self.step + 1)

    def on_validation_start(self) -> None:
        """Starts the clock of validation, which is not part of a step's time."""
        self._validation_start = time.perf_counter()

    def on_validation_end(self) -> None:
        """Stops the clock of validation."""
        self.record.add_seconds("validation", time.perf_counter() - self._validation_start)

    def on_before_backward(self, loss: Tensor) -> None:
        """Starts the clock of the backward pass."""
        del loss
        self._backward_start = time.perf_counter()

    def on_after_backward(self) -> None:
        """Stops the clock of the backward pass."""
        self.record.add_seconds("backward", time.perf_counter() - self._backward_start)

    def configure_gradient_clipping(
        self,
        optimizer: Any,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clips by norm as the trainer says, and notes the norm before clipping."""
        del optimizer, gradient_clip_algorithm
        limit = float("inf") if gradient_clip_val is None else float(gradient_clip_val)
        norm = nn.utils.clip_grad_norm_(self.parameters(), limit)
        full = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # type: ignore[operator]
        self.record.metrics["train/grad_norm"] = float(full)

    def on_train_epoch_start(self) -> None:
        """Starts the record of a training step."""
        self.record.begin()

    def on_train_epoch_end(self) -> None:
        """Counts the step and logs its figures: means over processes, sums for the loss."""
        self.step += 1
        sums = {key: float(value) for key, value in self.record.sums.items()}
        shares = self._from_all_processes((self.record.figures(), sums))
        metrics = {
            **mean_metrics([figures for figures, _ in shares]),
            **self._objective.metrics(sum_metrics([sums for _, sums in shares])),
        }
        metrics["train/learning_rate"] = self.optimizers().param_groups[0]["lr"]  # type: ignore[union-attr]
        self._log_step(metrics, self.step)
        self.figures = metrics

    def _log_step(self, metrics: Mapping[str, float], step: int) -> None:
        """Logs figures that are the same on every process."""
        for key, value in {**metrics, "step": float(step)}.items():
            self.log(key, value, on_step=False, on_epoch=True, batch_size=1, rank_zero_only=False)

    def _from_all_processes(self, value: Any) -> list[Any]:
        """One value from each process, in the order of ranks.

        One collective for a whole dictionary: processes may have different keys, for instance where
        none of a process's groups has a signal.
        """
        exchange = exchange_between(self.global_rank, cast(L.Trainer, self.trainer).world_size)
        return exchange.gather(value)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Stores the number of completed steps; leaves out weights that do not change."""
        checkpoint["vpo_step"] = self.step
        # A tied weight has several names.
        named = self.named_parameters(remove_duplicate=False)
        fixed = {name for name, parameter in named if not parameter.requires_grad}
        for name in fixed & checkpoint["state_dict"].keys():
            del checkpoint["state_dict"][name]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restores the number of completed steps."""
        self.step = checkpoint["vpo_step"]
