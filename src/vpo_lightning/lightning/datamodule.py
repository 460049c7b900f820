"""The DataModule that streams rollouts: it collects a batch when its buffer is empty.

One Lightning epoch is one training step of RL: one rollout batch, its PPO epochs and mini-batches.
The dataset has a length, because without one Lightning prefetches and would sample the next
rollouts before the optimizer step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import lightning as L
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from vpo_lightning.errors import ConfigError
from vpo_lightning.rollout.ahead import AheadSampler, SampledAhead, in_order
from vpo_lightning.rollout.batch import MicroBatch, RolloutBatch
from vpo_lightning.rollout.collector import RolloutCollector
from vpo_lightning.rollout.dynamic_sampling import collect_with_signal, credited_together
from vpo_lightning.rollout.exchange import Exchange, exchange_between
from vpo_lightning.rollout.minibatch import UpdatePlan, micro_batches
from vpo_lightning.rollout.prompts import PromptStream
from vpo_lightning.task import PromptRow

if TYPE_CHECKING:
    from vpo_lightning.lightning.module import VPOModule


@dataclass(frozen=True)
class Processes:
    """This process among those that train together."""

    rank: int = 0
    world_size: int = 1

    def slice(self, items: Sequence[Any]) -> list[Any]:
        """Every world_size-th item from `rank` on."""
        return list(items[self.rank :: self.world_size])


class RolloutDataModule(L.LightningDataModule):
    """Streams micro-batches of credited rollouts, and held-out prompts for validation.

    Args:
        collector: Collects rollouts; its engine is set by the engine callback once training starts.
        prompts: The endless stream of training prompts.
        validation_rows: Held-out prompts.
        prompts_per_step: B over all processes.
        plan: How a rollout batch is cut into optimizer steps and micro-batches.
        sampling_rounds: Rounds of dynamic sampling, see `rollout.dynamic_sampling`; 1 is off.
        staleness: 1 samples the next batch while the current one trains, from the weights before
            its update; 0 samples each batch from the weights that it updates.
    """

    def __init__(
        self,
        collector: RolloutCollector,
        prompts: PromptStream,
        validation_rows: Sequence[PromptRow],
        prompts_per_step: int,
        plan: UpdatePlan,
        sampling_rounds: int = 1,
        staleness: int = 0,
    ) -> None:
        super().__init__()
        self.collector = collector
        self.prompts = prompts
        self.validation_rows = validation_rows
        self.prompts_per_step = prompts_per_step
        self.plan = plan
        self.sampling_rounds = sampling_rounds
        self.staleness = staleness
        self.ahead = AheadSampler()
        self._prompts_before: dict[str, Any] = {}  # of the batch that is sampled ahead
        self._kept: dict[str, Any] | None = None  # that batch, from a checkpoint
        self.listeners: list[Any] = []

    @property
    def processes(self) -> Processes:
        """This process among those of the trainer."""
        trainer = cast(L.Trainer, self.trainer)
        return Processes(trainer.global_rank, trainer.world_size)

    @property
    def exchange(self) -> Exchange:
        """How this process and the others see each other's values."""
        return exchange_between(self.processes.rank, self.processes.world_size)

    @property
    def module(self) -> VPOModule:
        """The module that is trained."""
        return cast("VPOModule", cast(L.Trainer, self.trainer).lightning_module)

    def setup(self, stage: str) -> None:
        """Refuses a number of prompts that the processes cannot share equally."""
        del stage
        world_size = cast(L.Trainer, self.trainer).world_size
        share = self.prompts_per_step, world_size * self.plan.minibatches
        if share[0] % share[1]:
            raise ConfigError(
                f"rollout.prompts_per_step={self.prompts_per_step} cannot be shared equally by "
                f"{world_size} processes with {self.plan.minibatches} mini-batches each; "
                f"set rollout.prompts_per_step to a multiple of {share[1]}"
            )

    def train_dataloader(self) -> DataLoader[MicroBatch]:
        """One pass is one training step."""
        return DataLoader(_StepDataset(self), batch_size=None, num_workers=0)

    def val_dataloader(self) -> DataLoader[list[PromptRow]]:
        """This process's held-out prompts, as one batch."""
        rows = self.processes.slice(self.validation_rows)
        return DataLoader(_Rows([rows] if rows else []), batch_size=None, num_workers=0)

    def collect(self) -> RolloutBatch:
        """The next rollout batch of this process, and everything logged about it."""
        processes, exchange, fetching = self.processes, self.exchange, 0.0
        step = self.module.step
        self._restore(step)
        sampled = self.ahead.take(step)

        def take(count: int) -> list[PromptRow]:
            nonlocal fetching
            if sampled is not None:
                return sampled.rows
            start = time.perf_counter()
            rows = processes.slice(self.prompts.take(count * processes.world_size))
            fetching += time.perf_counter() - start
            return rows

        batch = collect_with_signal(
            take,
            lambda rows, attempt: self.collector.collect(
                rows, step, attempt=attempt, exchange=exchange, sampled=sampled
            ),
            self.prompts_per_step // processes.world_size,
            self.sampling_rounds,
            lambda value: max(exchange.gather(value)),
            lambda groups: credited_together(self.collector.method, groups, exchange),
        )
        batch.seconds["prompt"] += fetching
        for name, count in self.collector.scorer.counters().items():
            batch.metrics[f"rollout/{name}"] = float(count)
        batch.metrics["rollout/dropped_prompts"] = float(self.prompts.dropped)
        for listener in self.listeners:
            listener(batch)
        return batch

    def sample_ahead(self) -> None:
        """Begins to sample the next step's batch, if there is a next step and it is asked for."""
        step = self.module.step + 1
        if not self.staleness or step >= (cast(L.Trainer, self.trainer).max_epochs or 0):
            return
        self._prompts_before = self.prompts.state_dict()
        rows = self.processes.slice(self.prompts.take(self.prompts_per_step))
        self.ahead.start(self.collector, rows, step, self.module.device)

    def transfer_batch_to_device(
        self, batch: Any, device: torch.device, dataloader_idx: int
    ) -> Any:
        """Micro-batches go to the device of the policy; prompt rows stay where they are."""
        del dataloader_idx
        return batch.to(device) if isinstance(batch, MicroBatch) else batch

    def state_dict(self) -> dict[str, Any]:
        """Where the stream of training prompts stands, and the batch that was sampled ahead.

        Its weights will be gone when the run resumes, so its completions are kept.
        """
        waiting = self.ahead.waiting
        if waiting is None:
            return {"prompts": self.prompts.state_dict()}
        shares = self.exchange.gather(waiting.completions)
        kept = {"version": waiting.version, "completions": in_order(shares)}
        return {"prompts": self._prompts_before, "ahead": kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues the stream of training prompts, with any number of processes."""
        self.prompts.load_state_dict(state_dict["prompts"])
        self._kept = state_dict.get("ahead")

    def _restore(self, step: int) -> None:
        """Makes the batch that a checkpoint kept the next one."""
        if self._kept is None:
            return
        kept, self._kept = self._kept, None
        rows = self.processes.slice(self.prompts.take(self.prompts_per_step))
        completions = self.processes.slice(kept["completions"])
        self.ahead.put(SampledAhead(step, kept["version"], rows, completions))


class _StepDataset(IterableDataset[MicroBatch]):
    """The micro-batches of one training step."""

    def __init__(self, data: RolloutDataModule) -> None:
        self._data = data

    def __len__(self) -> int:
        return self._data.plan.batches_per_step(self._data.collector.group_size * self._share())

    def __iter__(self) -> Iterator[MicroBatch]:
        batch = self._data.collect()
        module = self._data.module
        module.receive(batch)
        plan, group_size = self._data.plan, self._data.collector.group_size
        updates = [
            micro_batches(batch, plan, group_size, minibatch)
            for minibatch in range(plan.minibatches)
        ]
        totals = torch.tensor([[u[0].step_tokens, u[0].step_rows] for u in updates])
        totals = cast(L.Trainer, self._data.trainer).strategy.reduce(
            totals.double(), reduce_op="sum"
        )
        prepared = [[module.prepare(m) for m in update] for update in updates]
        self._data.sample_ahead()
        for _ in range(plan.epochs):
            for total, update in zip(cast(torch.Tensor, totals).tolist(), prepared, strict=True):
                tokens, completions = (int(count) for count in total)
                for micro_batch in update:
                    yield replace(micro_batch, step_tokens=tokens, step_rows=completions)

    def _share(self) -> int:
        return self._data.prompts_per_step // self._data.processes.world_size


class _Rows(Dataset[Any]):
    """A list of items as a dataset."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Any:
        return self._items[index]
