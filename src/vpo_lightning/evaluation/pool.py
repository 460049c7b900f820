"""The answers sampled for one prompt, and their place on disk."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vpo_lightning.evaluation.files import readable_parquet

SCHEMA = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("objectives", pa.list_(pa.string())),
        ("importance", pa.list_(pa.float64())),
        ("rewards", pa.list_(pa.list_(pa.list_(pa.float64())))),
        ("texts", pa.list_(pa.list_(pa.string()))),
        ("tokens", pa.list_(pa.int32())),
        ("is_truncated", pa.list_(pa.bool_())),
        ("asked", pa.list_(pa.list_(pa.float64()))),
        ("votes", pa.list_(pa.list_(pa.string()))),
        ("prompt_tokens", pa.int32()),
    ]
)
_SAMPLING = b"sampling"


@dataclass(frozen=True)
class PromptPool:
    """C chains of m answers to one prompt.

    Attributes:
        prompt_id: The prompt.
        objectives: Names of its K objectives.
        importance: Weight of each objective in the task's scalar reward.
        rewards: Reward vectors (C, m, K), every slot as written.
        texts: Answer texts (C, m), None where a slot is missing.
        tokens: Completion tokens of each chain.
        is_truncated: Whether each chain hit the token limit.
        asked: Weights (C, K) that each chain's prompt stated; None if it stated none.
        votes: What majority voting counts (C, m), None where an answer has no vote; None if voting
            has no meaning for the task.
        prompt_tokens: Tokens of the prompt.
    """

    prompt_id: str
    objectives: list[str]
    importance: list[float]
    rewards: list[list[list[float]]]
    texts: list[list[str | None]]
    tokens: list[int]
    is_truncated: list[bool]
    asked: list[list[float]] | None = None
    votes: list[list[str | None]] | None = None
    prompt_tokens: int = 0


def write_pools(
    pools: Sequence[PromptPool], path: Path, sampling: Mapping[str, Any] | None = None
) -> None:
    """Writes pools as one parquet file, one record a prompt, all or nothing.

    Args:
        pools: The records.
        path: The file.
        sampling: How the answers were sampled, kept in the file's metadata.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    table = pa.Table.from_pylist([asdict(pool) for pool in pools], schema=SCHEMA)
    table = table.replace_schema_metadata({_SAMPLING: json.dumps(dict(sampling or {}))})
    pq.write_table(table, temporary, compression="zstd")
    os.replace(temporary, path)


def read_sampling(path: Path) -> dict[str, Any]:
    """How the answers of a file were sampled; empty if it does not say.

    Raises:
        ConfigError: The file cannot be read.
    """
    with readable_parquet(path):
        return json.loads((pq.read_schema(path).metadata or {}).get(_SAMPLING, b"{}"))


def read_pools(path: Path) -> list[PromptPool]:
    """The pools of a file.

    Raises:
        ConfigError: The file cannot be read, or holds something else.
    """
    with readable_parquet(path):
        return [PromptPool(**record) for record in pq.read_table(path).to_pylist()]
