"""What one process notes about a training step while it runs: figures, sums and seconds."""

from __future__ import annotations

import time
from collections.abc import Mapping

from torch import Tensor

from vpo_lightning.rollout.batch import RolloutBatch

_STAGES = ("generate", "score", "reference", "forward", "backward")


class StepRecord:
    """The training step so far, on this process.

    Attributes:
        metrics: Figures by metric key.
        sums: What the objective makes the step's loss figures of; tensors, so that a micro-batch
            does not wait for the device.
    """

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self.sums: dict[str, Tensor] = {}
        self._seconds: dict[str, float] = {}
        self._generated_tokens = 0
        self._start = 0.0

    def begin(self) -> None:
        """Forgets the last step and starts the clock of the next one."""
        self.metrics.clear()
        self.sums.clear()
        self._seconds.clear()
        self._start = time.perf_counter()

    def add_rollouts(self, batch: RolloutBatch) -> None:
        """Notes the figures and seconds of the step's rollouts."""
        self.metrics.update(batch.metrics)
        self._generated_tokens = sum(len(c.ids) for g in batch.groups for c in g.completions)
        for stage, seconds in batch.seconds.items():
            self.add_seconds(stage, seconds)

    def add_sums(self, sums: Mapping[str, Tensor]) -> None:
        """Adds the sums of a micro-batch."""
        for key, value in sums.items():
            self.sums[key] = self.sums[key] + value if key in self.sums else value

    def add_seconds(self, stage: str, seconds: float) -> None:
        """Counts time to a stage, or to `validation`, which is no part of a step."""
        self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds

    def figures(self) -> dict[str, float]:
        """The metrics, and the timings up to now in seconds."""
        total = time.perf_counter() - self._start - self._seconds.get("validation", 0.0)
        timings = {f"time/{stage}": self._seconds.get(stage, 0.0) for stage in _STAGES}
        busy = sum(timings.values())
        return {
            **self.metrics,
            **timings,
            "time/step": total,
            "time/overhead_fraction": (total - busy) / total,
            "time/tokens_per_second": self._generated_tokens / total,
        }
