"""The next batch is sampled while the current one trains: rollouts that are one step off-policy."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vpo_lightning.rollout.collector import RolloutCollector
from vpo_lightning.rollout.engine import Completion, RolloutEngine
from vpo_lightning.task import PromptRow


@dataclass(frozen=True)
class SampledAhead:
    """Completions that wait for the training step that uses them.

    Attributes:
        step: That training step.
        version: Policy version of the weights that sampled them.
        rows: This process's prompts.
        completions: Of each prompt.
    """

    step: int
    version: int
    rows: list[PromptRow]
    completions: list[list[Completion]]


class AheadSampler:
    """Samples one batch at a time in a thread of its own.

    Only the sampling runs there: scores and advantages are computed by the step that uses the
    batch, because processes exchange them in the same order everywhere. While the thread runs the
    engine is its own; `wait` before anything else uses it.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._done: SampledAhead | None = None
        self._failure: BaseException | None = None

    def start(
        self, collector: RolloutCollector, rows: list[PromptRow], step: int, device: torch.device
    ) -> None:
        """Begins to sample the batch of training step `step` from the engine's present weights."""
        assert self._thread is None
        requests = collector.requests(rows, step)
        engine: RolloutEngine = collector.engine  # type: ignore[assignment]
        version = engine.version

        def run() -> None:
            try:
                if device.type == "cuda":  # a thread starts on the first GPU
                    torch.cuda.set_device(device)
                completions = engine.generate(requests, collector.sampling)
                self._done = SampledAhead(step, version, rows, completions)
            except BaseException as error:  # thread boundary: raised again by `wait`
                self._failure = error

        self._thread = threading.Thread(target=run, name=f"rollouts of step {step}", daemon=True)
        self._thread.start()

    def wait(self) -> float:
        """Waits until the engine is free; the seconds that took.

        Raises:
            Exception: What sampling raised.
        """
        start = time.perf_counter()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return time.perf_counter() - start

    def abandon(self, limit: float) -> None:
        """Forgets the batch and its errors; waits at most `limit` seconds for the engine."""
        if self._thread is not None:
            self._thread.join(limit)
        self._thread = self._done = self._failure = None

    def take(self, step: int) -> SampledAhead | None:
        """The batch of training step `step`, if it was sampled ahead."""
        self.wait()
        if self._done is None or self._done.step != step:
            return None
        done, self._done = self._done, None
        return done

    def put(self, sampled: SampledAhead) -> None:
        """Gives back a batch that a checkpoint has kept."""
        self._done = sampled

    @property
    def waiting(self) -> SampledAhead | None:
        """The batch that was sampled and not yet used."""
        self.wait()
        return self._done


def in_order(shares: Sequence[Sequence[list[Completion]]]) -> list[list[Completion]]:
    """The completions of all processes, which took the prompts in turn, in the prompts' order."""
    return [group for turn in zip(*shares, strict=True) for group in turn]
