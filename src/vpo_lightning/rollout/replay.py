"""An engine that plays stored rollouts again: the same data for a refactor, a strategy, a loss."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from vpo_lightning.errors import ConfigError
from vpo_lightning.rollout.engine import Completion, GenerationRequest, SamplingSettings
from vpo_lightning.rollout.store import read_rollouts


class ReplayEngine:
    """Returns the completions that another run stored for the same step and prompt.

    Args:
        model_folder: Not used; every engine is built with it.
        path: The rollouts folder of that run.
        settings: Not used: dtype and device, which every engine is built with.

    Raises:
        ConfigError: There are no rollouts in `path`.
    """

    def __init__(self, model_folder: str, *, path: str, **settings: Any) -> None:
        del model_folder, settings
        self.positions = sys.maxsize
        self.version = 0
        self._completions: dict[tuple[int, str, int], Completion] = {}
        try:
            for record in read_rollouts(Path(path)):
                key = (record["policy_version"], record["prompt_id"], record["sample"])
                self._completions[key] = Completion(
                    record["completion_ids"],
                    record["logprobs"],
                    record["text"],
                    record["finish_reason"],
                )
        except FileNotFoundError as error:
            raise ConfigError(f"engine.path={path}: no rollouts (*.parquet) there") from error

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> list[list[Completion]]:
        """The stored completions of each request.

        Raises:
            ConfigError: A request was not stored: other prompts, seed, group size or validation.
        """
        del sampling
        return [
            [self._stored(request.id, sample) for sample in range(len(request.seeds))]
            for request in requests
        ]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Notes the version, which is the step to play next."""
        for _ in weights:
            pass
        self.version = version

    def close(self) -> None:
        """Forgets the rollouts."""
        self._completions.clear()

    def _stored(self, prompt_id: str, sample: int) -> Completion:
        try:
            return self._completions[(self.version, prompt_id, sample)]
        except KeyError as error:
            raise ConfigError(
                f"engine=replay has no rollout {sample} of prompt {prompt_id} at step "
                f"{self.version}; run with the same task, seed and rollout settings, "
                "trainer.validate_every=0 and evaluation.num_prompts=0, and trainer.max_steps no "
                "larger than that run's"
            ) from error
