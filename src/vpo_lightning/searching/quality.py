"""What a set of answers is worth: the figures of the budget curves, and what guides a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from vpo_lightning.errors import ConfigError
from vpo_lightning.evaluation.pool_metrics import PoolMetrics
from vpo_lightning.task import PromptRow, Task

FIGURES = ("expected_max", "best", "selected", "solved")
# A reward smaller by less than this still reaches a threshold (rounding of fractions).
_TOLERANCE = 1e-9


@cache
def weight_grid(num_objectives: int) -> NDArray[np.float64]:
    """The weights over K objectives that stand for unknown priorities (N, K).

    The grid of the evaluation by default: 256 scrambled Sobol points on the simplex, seed 0.
    """
    return PoolMetrics().weight_grid(num_objectives).numpy()


@dataclass(frozen=True)
class Guide:
    """What a search steers by: fixed weights, or all weights at once.

    Attributes:
        weights: One weight for each objective; None: the priorities are unknown, and a set of
            answers is worth ``E_w max w.r`` over its answers, as VPO trains for.

    Raises:
        ConfigError: Weights that are negative or sum to nothing.
    """

    weights: Sequence[float] | None = None

    def __post_init__(self) -> None:
        """Checks the weights."""
        weights = self.weights
        if weights is not None and (min(weights, default=-1) < 0 or sum(weights) <= 0):
            raise ConfigError(
                f"search.weights={list(weights)}: expected one weight of at least 0 for each "
                "objective, one of them positive; or null"
            )

    def check(self, row: PromptRow) -> None:
        """Refuses weights for another number of objectives.

        Raises:
            ConfigError: Says how many are expected.
        """
        if self.weights is not None and len(self.weights) != len(row.objectives):
            names = ", ".join(objective.name for objective in row.objectives)
            raise ConfigError(
                f"search.weights={list(self.weights)}: {row.id} has {len(row.objectives)} "
                f"objectives ({names}); give one weight for each, or null"
            )

    def directions(self, num_objectives: int) -> NDArray[np.float64]:
        """The weight vectors that count (N, K), each summing to 1."""
        if self.weights is None:
            return weight_grid(num_objectives)
        given = np.asarray([self.weights], dtype=np.float64)
        return given / given.sum()

    def set_value(self, rewards: Sequence[Sequence[float]]) -> float:
        """The mean over the weights of the best answer; 0 for no answer."""
        if not rewards:
            return 0.0
        matrix = np.asarray(rewards, dtype=np.float64)
        return float((matrix @ self.directions(matrix.shape[1]).T).max(0).mean())

    def answer_value(self, task: Task, row: PromptRow, rewards: Sequence[float]) -> float:
        """The scalar that ranks single answers: by the fixed weights, else the task's own."""
        if self.weights is None:
            return task.scalar(rewards, row)
        return float(self.directions(len(rewards))[0] @ np.asarray(rewards))


@dataclass(frozen=True)
class Solved:
    """When a prompt counts as solved.

    Attributes:
        scalar: Some answer's scalar reward reaches this.
        cover: Least value by objective name; where it is given it takes the place of `scalar`:
            for each of these objectives some answer reaches its value.
    """

    scalar: float = 1.0
    cover: Mapping[str, float] | None = None

    def check(self, row: PromptRow) -> None:
        """Refuses objectives that a row does not have.

        Raises:
            ConfigError: Names them.
        """
        names = [objective.name for objective in row.objectives]
        unknown = [name for name in self.cover or () if name not in names]
        if unknown:
            raise ConfigError(f"solved.cover={unknown}: no such objective; the task has {names}")

    def reached(self, task: Task, row: PromptRow, rewards: Sequence[float]) -> set[str]:
        """Which parts of the goal an answer reaches; see `parts`."""
        if not self.cover:
            return {"scalar"} if task.scalar(rewards, row) >= self.scalar - _TOLERANCE else set()
        values = dict(zip((o.name for o in row.objectives), rewards, strict=True))
        return {k for k, least in self.cover.items() if values[k] >= least - _TOLERANCE}

    def parts(self) -> set[str]:
        """The parts that all have to be reached."""
        return set(self.cover or ()) or {"scalar"}
