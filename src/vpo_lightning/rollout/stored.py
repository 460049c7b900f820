"""The rollouts of a run read back from disk, as the tensors that a method scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from jaxtyping import Float64, Int
from torch import Tensor

from vpo_lightning.errors import ConfigError
from vpo_lightning.evaluation.files import readable_parquet
from vpo_lightning.rollout.credit import RewardTensors, reward_tensors
from vpo_lightning.scoring import RewardVector
from vpo_lightning.task import Objective

_SLOTS = "answers.list.element.rewards"  # without the texts, which are most of a file
_COLUMNS = ["step", "prompt_id", "sample", "objectives", "matrix", "advantage", "completion_ids"]

Matrix = Sequence[Sequence[float]]


@dataclass(frozen=True)
class StoredRollouts:
    """Groups of rollouts read from disk, step by step.

    Attributes:
        steps: Training step of each group, ascending.
        prompt_ids: Prompt of each group.
        objectives: Of each group.
        matrices: The reward matrix of each rollout of each group, as training saw it: duplicates
            removed, padded.
        slots: The reward vectors of each rollout's answers as written, one for every slot.
        lengths: Completion lengths in tokens.
        advantages: As the run itself credited them.
    """

    steps: list[int]
    prompt_ids: list[str]
    objectives: list[list[Objective]]
    matrices: list[list[Matrix]]
    slots: list[list[Matrix]]
    lengths: Int[Tensor, "B G"]
    advantages: Float64[Tensor, "B G"]

    @property
    def num_answers(self) -> int:
        """M, the largest number of answers in a rollout."""
        return max(len(matrix) for group in self.slots for matrix in group)

    def by_step(self) -> Iterator[slice]:
        """The groups of each training step."""
        first = 0
        for i in range(1, len(self.steps) + 1):
            if i == len(self.steps) or self.steps[i] != self.steps[first]:
                yield slice(first, i)
                first = i

    def seen_through(self, vector: RewardVector, importance: Mapping[str, float]) -> StoredRollouts:
        """The same rollouts with the objectives, scales and floors of a reward vector.

        Args:
            vector: Of the run, as a rule.
            importance: Weight by objective name in the task's scalar reward; 1 where one is
                missing.

        Raises:
            ConfigError: The vector names an objective that the rollouts do not have.
        """
        declared = [
            [replace(o, weight=importance.get(o.name, 1.0)) for o in group]
            for group in self.objectives
        ]

        def applied(matrices: list[list[Matrix]]) -> list[list[Matrix]]:
            return [
                [vector.apply(names, matrix) for matrix in group]
                for names, group in zip(declared, matrices, strict=True)
            ]

        return replace(
            self,
            objectives=[vector.select(names) for names in declared],
            matrices=applied(self.matrices),
            slots=applied(self.slots),
        )

    @cached_property
    def chains(self) -> RewardTensors:
        """The rewards of all groups; the weights are left empty (N = 0)."""
        return reward_tensors(self.matrices, self._no_weights(), self.lengths, self.prompt_ids)

    @cached_property
    def singles(self) -> RewardTensors:
        """Every slot of every chain as a rollout of its own, in groups of G x M.

        A chain's tokens are shared out equally. Missing answers are worth zero, as an unparsed
        single answer is.
        """
        m = self.num_answers
        flat = [[[row] for matrix in group for row in _padded(matrix, m)] for group in self.slots]
        lengths = (self.lengths // m).clamp_min(1).repeat_interleave(m, dim=1)
        return reward_tensors(flat, self._no_weights(), lengths, self.prompt_ids)

    def _no_weights(self) -> Float64[Tensor, "B N K"]:
        width = max(len(names) for names in self.objectives)
        return torch.zeros(len(self.steps), 0, width, dtype=torch.float64)


def read_stored(path: Path) -> StoredRollouts:
    """The rollouts of a run folder, of its ``rollouts`` folder or of one parquet file.

    Raises:
        ConfigError: There are none, the columns are others, or groups differ in size.
    """
    groups: list[list[dict[str, Any]]] = []
    for file in _files(path):
        groups += _groups_of(file)
    groups.sort(key=lambda group: group[0]["step"])
    sizes = sorted({len(group) for group in groups})
    if len(sizes) != 1:
        raise ConfigError(
            f"{path}: groups of {sizes} rollouts; re-scoring compares groups of one size, give it "
            "the rollouts of one run"
        )

    def column(name: str) -> list[list[Any]]:
        return [[record[name] for record in group] for group in groups]

    return StoredRollouts(
        steps=[group[0]["step"] for group in groups],
        prompt_ids=[group[0]["prompt_id"] for group in groups],
        objectives=[[Objective(name, name) for name in group[0]["objectives"]] for group in groups],
        matrices=column("matrix"),
        slots=[
            [[answer["rewards"] for answer in answers] for answers in group]
            for group in column("answers")
        ],
        lengths=torch.tensor(column("length")),
        advantages=torch.tensor(column("advantage"), dtype=torch.float64),
    )


def _padded(matrix: Matrix, rows: int) -> list[Sequence[float]]:
    return [*matrix, *([[0.0] * len(matrix[0])] * (rows - len(matrix)))]


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    folder = path / "rollouts" if (path / "rollouts").is_dir() else path
    files = sorted(folder.glob("*.parquet"))
    if not files:
        raise ConfigError(
            f"{path}: no rollouts (*.parquet) here; expected a run folder, its rollouts folder or "
            "one of its files"
        )
    return files


def _groups_of(file: Path) -> list[list[dict[str, Any]]]:
    """The records of a file group by group: a group begins with its rollout 0."""
    with readable_parquet(file):
        parquet = pq.ParquetFile(file)
        missing = sorted({*_COLUMNS, "answers"} - set(parquet.schema_arrow.names))
        if missing:
            raise ConfigError(f"{file}: no columns {missing}; expected a run's rollouts/*.parquet")
        table = parquet.read(columns=[*_COLUMNS, _SLOTS])
    lengths = pc.list_value_length(table["completion_ids"]).to_pylist()  # type: ignore[attr-defined]
    groups: list[list[dict[str, Any]]] = []
    records = table.drop_columns(["completion_ids"]).to_pylist()
    for record, length in zip(records, lengths, strict=True):
        if record["sample"] == 0 or not groups:
            groups.append([])
        groups[-1].append({**record, "length": length or 0})
    return groups
