"""The rollouts of a run on disk: one parquet file a step, one record a rollout.

A record holds every answer with its slot, so that any other method can score the rollouts again,
and the token ids, so that they can be replayed without sampling.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from vpo_lightning.evaluation.files import readable_parquet
from vpo_lightning.rollout.batch import RolloutBatch, RolloutGroup

_ANSWER = pa.struct(
    [
        ("slot", pa.int32()),
        ("text", pa.string()),
        ("rewards", pa.list_(pa.float64())),
        ("is_parsed", pa.bool_()),
        ("is_duplicate", pa.bool_()),
        ("win_share", pa.float64()),
        ("explanation", pa.string()),
        ("error", pa.string()),
    ]
)
SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("policy_version", pa.int32()),
        ("prompt_id", pa.string()),
        ("sample", pa.int32()),
        ("objectives", pa.list_(pa.string())),
        ("answers", pa.list_(_ANSWER)),
        ("matrix", pa.list_(pa.list_(pa.float64()))),
        ("weights", pa.list_(pa.list_(pa.float64()))),
        ("set_reward", pa.float64()),
        ("advantage", pa.float64()),
        ("finish_reason", pa.string()),
        ("text", pa.string()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("completion_ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        ("prompt", pa.string()),
        ("ground_truth", pa.string()),
    ]
)
"""`weights`, `prompt` and `ground_truth` are stored with the first rollout of a group only;
`matrix` is the task's reward matrix that training used (duplicates removed, padded)."""


def write_rollouts(batch: RolloutBatch, folder: Path, rank: int = 0) -> Path:
    """Writes a step's rollouts to ``<folder>/step_<step>_rank_<rank>.parquet``, all or nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    records = [
        _record(batch, group, sample)
        for group in batch.groups
        for sample in range(len(group.completions))
    ]
    path = folder / f"step_{batch.step:06d}_rank_{rank}.parquet"
    temporary = path.with_suffix(".tmp")
    pq.write_table(pa.Table.from_pylist(records, schema=SCHEMA), temporary, compression="zstd")
    os.replace(temporary, path)
    return path


def read_rollouts(folder: Path) -> Iterator[dict[str, Any]]:
    """The records of a rollouts folder (or of one parquet file), by step, rank and group.

    Raises:
        FileNotFoundError: There is no parquet file.
        ConfigError: A file cannot be read.
    """
    paths = sorted(folder.glob("*.parquet")) if folder.is_dir() else [folder]
    if not paths or not paths[0].exists():
        raise FileNotFoundError(f"{folder}: no rollouts (*.parquet) here")
    for path in paths:
        with readable_parquet(path):
            records = pq.read_table(path).to_pylist()
        yield from records


def remove_rollouts_from(folder: Path, step: int) -> None:
    """Deletes the files of `step` and later ones: a resumed run samples them again."""
    for path in folder.glob("step_*"):
        match = re.match(r"step_(\d+)", path.name)
        if match and int(match.group(1)) >= step:
            path.unlink()


def _record(batch: RolloutBatch, group: RolloutGroup, sample: int) -> dict[str, Any]:
    completion, scored = group.completions[sample], group.scored[sample]
    is_first = sample == 0
    shares = win_shares(group, sample)
    return {
        "step": batch.step,
        "policy_version": batch.policy_version,
        "prompt_id": group.row.id,
        "sample": sample,
        "objectives": [objective.name for objective in group.row.objectives],
        "answers": [
            {**vars(answer), "win_share": shares[answer.slot]} for answer in scored.answers
        ],
        "matrix": scored.matrix,
        "weights": group.weights.tolist() if is_first else None,
        "set_reward": float(group.set_rewards[sample]),
        "advantage": float(group.advantages[sample]),
        "finish_reason": completion.finish_reason,
        "text": completion.text,
        "prompt_ids": list(group.prompt_ids) if is_first else None,
        "completion_ids": completion.ids,
        "logprobs": completion.logprobs,
        "prompt": group.row.prompt if is_first else None,
        "ground_truth": json.dumps(dict(group.row.ground_truth)) if is_first else None,
    }


def win_shares(group: RolloutGroup, sample: int) -> list[float | None]:
    """The share of the weight draws under which each slot is the best of its chain.

    Ties go to the earlier slot. None for every slot when the draws do not match the task's own
    objectives (a reward vector that selects or collapses them).
    """
    answers = group.scored[sample].answers
    rewards = torch.tensor([answer.rewards for answer in answers], dtype=torch.float64)
    if group.weights.shape[1] != rewards.shape[1]:
        return [None] * len(answers)
    values = rewards @ group.weights.to(torch.float64).T
    # Equal answers may differ in the last bits.
    winners = (values >= values.amax(0) - 1e-12).double().argmax(0)
    counts = torch.bincount(winners, minlength=len(answers))
    return (counts / winners.numel()).tolist()
