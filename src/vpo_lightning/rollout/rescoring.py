"""Stored rollouts scored again by other methods, and how much the methods agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from jaxtyping import Float64, Int
from torch import Tensor
from torch.nn.functional import pad

from vpo_lightning.core.seeding import derive_seed
from vpo_lightning.core.signal import groups_with_signal
from vpo_lightning.errors import ConfigError
from vpo_lightning.rollout.credit import (
    Method,
    RewardTensors,
    advantages,
    reward_tensors,
    set_rewards,
)

_COLUMNS = ["step", "prompt_id", "sample", "objectives", "matrix", "advantage", "completion_ids"]


@dataclass(frozen=True)
class StoredRollouts:
    """Groups of rollouts read from disk, step by step.

    Attributes:
        steps: Training step of each group, ascending.
        prompt_ids: Prompt of each group.
        objectives: Names of each group's objectives.
        matrices: The reward matrix (answers, objectives) of each rollout of each group.
        lengths: Completion lengths in tokens.
        advantages: As the run itself credited them.
    """

    steps: list[int]
    prompt_ids: list[str]
    objectives: list[list[str]]
    matrices: list[list[list[list[float]]]]
    lengths: Int[Tensor, "B G"]
    advantages: Float64[Tensor, "B G"]

    @property
    def num_answers(self) -> int:
        """M, the largest number of answers in a rollout."""
        return max(len(matrix) for group in self.matrices for matrix in group)

    def by_step(self) -> Iterator[slice]:
        """The groups of each training step."""
        first = 0
        for i in range(1, len(self.steps) + 1):
            if i == len(self.steps) or self.steps[i] != self.steps[first]:
                yield slice(first, i)
                first = i

    @cached_property
    def width(self) -> int:
        """K, the largest number of objectives of a group."""
        return max(len(names) for names in self.objectives)

    @cached_property
    def chains(self) -> RewardTensors:
        """The rewards of all groups; the weights are left empty (N = 0)."""
        empty = torch.zeros(len(self.steps), 0, self.width, dtype=torch.float64)
        return reward_tensors(self.matrices, empty, self.lengths, self.prompt_ids)

    @cached_property
    def first_answers(self) -> RewardTensors:
        """The same with the first answer of each chain only."""
        return replace(
            self.chains,
            rewards=self.chains.rewards[:, :, :1],
            answer_mask=self.chains.answer_mask[:, :, :1],
        )


@dataclass(frozen=True)
class Settings:
    """How stored rollouts are scored again.

    Attributes:
        seed: Of the weights; with the run's own seed, VPO draws what the run drew.
        resamples: Sets of weights under which each method is scored, for the variance.
        weights: Fixed weight by objective name; 1 where a name is missing.
    """

    seed: int
    resamples: int
    weights: Mapping[str, float]


@dataclass(frozen=True)
class Rescored:
    """What one method makes of the rollouts.

    Attributes:
        advantages: Of every rollout.
        signal_fraction: Of the groups, those with a non-zero advantage.
        weight_variance: Mean variance of an advantage over the resampled weights, relative to the
            variance of the advantages; 0 for a method without random weights.
    """

    advantages: Float64[Tensor, "B G"]
    signal_fraction: float
    weight_variance: float


def read_stored(path: Path) -> StoredRollouts:
    """The rollouts of a run folder, of its ``rollouts`` folder or of one parquet file.

    Raises:
        ConfigError: There are none, the columns are others, or groups differ in size.
    """
    groups: list[list[dict[str, object]]] = []
    for file in _files(path):
        groups += _groups_of(file)
    groups.sort(key=lambda group: int(str(group[0]["step"])))
    sizes = sorted({len(group) for group in groups})
    if len(sizes) != 1:
        raise ConfigError(
            f"{path}: groups of {sizes} rollouts; re-scoring compares groups of one size, give it "
            "the rollouts of one run"
        )

    def column(name: str) -> list[list[object]]:
        return [[record[name] for record in group] for group in groups]

    return StoredRollouts(
        steps=[int(str(group[0]["step"])) for group in groups],
        prompt_ids=[str(group[0]["prompt_id"]) for group in groups],
        objectives=[list(group[0]["objectives"]) for group in groups],  # type: ignore[call-overload]
        matrices=column("matrix"),  # type: ignore[arg-type]
        lengths=torch.tensor(column("length")),
        advantages=torch.tensor(column("advantage"), dtype=torch.float64),
    )


def rescore(method: Method, stored: StoredRollouts, settings: Settings) -> Rescored:
    """What a method makes of stored rollouts, each training step taken as its batch.

    A method that asks for one answer sees the first of each chain. Scores come from the task's own
    reward vector, without a length penalty.

    Raises:
        ValueError: The method is not defined for these rollouts (k too large, K too large).
    """
    tensors = stored.first_answers if method.prompt.num_answers == 1 else stored.chains
    found = _credited(method, stored, tensors, settings, 0)
    variance = 0.0
    if method.weights is not None and settings.resamples > 1:
        again = range(1, settings.resamples)
        draws = [found, *(_credited(method, stored, tensors, settings, i) for i in again)]
        spread = torch.stack(draws).var(dim=0).mean()
        variance = float(spread / found.var().clamp_min(1e-12))
    signal = float(groups_with_signal(found).double().mean())
    return Rescored(found, signal, variance)


def correlation(columns: Sequence[Tensor]) -> Float64[Tensor, "n n"]:
    """The Pearson correlation of advantages; NaN with a method whose advantages are all equal."""
    flat = torch.stack([column.flatten() for column in columns]).double()
    centred = flat - flat.mean(dim=1, keepdim=True)
    scale = centred.norm(dim=1)
    scale = torch.where(scale > 0, scale, torch.nan)
    return (centred @ centred.T) / (scale[:, None] * scale[None, :])


def sign_agreement(columns: Sequence[Tensor]) -> Float64[Tensor, "n n"]:
    """The share of rollouts with advantages of equal sign, of those where neither is 0."""
    signs = torch.stack([column.flatten() for column in columns]).double().sign()
    both = signs.abs() @ signs.abs().T
    return (signs @ signs.T / both + 1) / 2


def _credited(
    method: Method,
    stored: StoredRollouts,
    tensors: RewardTensors,
    settings: Settings,
    resample: int,
) -> Float64[Tensor, "B G"]:
    weights = torch.cat(
        [_weights(method, stored, step, settings, resample) for step in stored.by_step()]
    )
    whole = replace(tensors, weights=weights)
    scores = set_rewards(method, whole, max_tokens=0)
    parts: list[Tensor] = []
    for step in stored.by_step():
        batch = RewardTensors(**{name: value[step] for name, value in vars(whole).items()})
        parts.append(advantages(method, scores[step], batch))
    return torch.cat(parts)


def _weights(
    method: Method, stored: StoredRollouts, step: slice, settings: Settings, resample: int
) -> Float64[Tensor, "B N K"]:
    names = stored.objectives[step]
    if method.weights is None:
        rows = [[float(settings.weights.get(name, 1.0)) for name in group] for group in names]
        fixed = torch.zeros(len(rows), 1, stored.width, dtype=torch.float64)
        for i, row in enumerate(rows):
            total = sum(row) if method.normalize_weights else 1.0
            fixed[i, 0, : len(row)] = torch.tensor(row, dtype=torch.float64) / total
        return fixed
    number = stored.steps[step.start]
    moment = (number,) if method.redraw_weights else ()
    again = ("resample", resample) if resample else ()
    seeds = [
        derive_seed(settings.seed, "weights", *again, *moment, prompt)
        for prompt in stored.prompt_ids[step]
    ]
    counts = torch.tensor([len(group) for group in names])
    drawn = method.weights(counts, torch.tensor(seeds), step=number)
    return pad(drawn, (0, stored.width - drawn.shape[-1]))


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


def _groups_of(file: Path) -> list[list[dict[str, object]]]:
    """The records of a file group by group: a group begins with its rollout 0."""
    missing = sorted(set(_COLUMNS) - set(pq.read_schema(file).names))
    if missing:
        raise ConfigError(f"{file}: no columns {missing}; expected a run's rollouts/*.parquet")
    table = pq.read_table(file, columns=_COLUMNS)
    lengths = pc.list_value_length(table["completion_ids"]).to_pylist()  # type: ignore[attr-defined]
    groups: list[list[dict[str, object]]] = []
    records = table.drop_columns(["completion_ids"]).to_pylist()
    for record, length in zip(records, lengths, strict=True):
        if record["sample"] == 0 or not groups:
            groups.append([])
        groups[-1].append({**record, "length": length or 0})
    return groups
