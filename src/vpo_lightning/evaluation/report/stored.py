"""The stored rollouts of a run as the report reads them: few columns, one file at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vpo_lightning.evaluation.report.folders import Run, first_line

T = TypeVar("T")
_FILE = re.compile(r"step_(\d+)_rank_(\d+)\.parquet")
_TEXT_COLUMNS = [
    *("step", "prompt_id", "sample", "objectives", "answers", "set_reward", "advantage"),
    *("finish_reason", "text", "prompt", "ground_truth"),
]


@dataclass
class StoredRollout:
    """One rollout with what the report shows of it.

    Attributes:
        step: Training step.
        prompt_id: The prompt.
        prompt: Its text.
        ground_truth: What the task scored with.
        objectives: Names of the K objectives.
        sample: Number in the group.
        text: The completion.
        answers: By slot: text, rewards (K), is_parsed, is_duplicate, win_share.
        set_reward: Reward of the chain.
        advantage: Credit of the rollout.
        finish_reason: Why the completion ended.
        tokens: Of the completion.
    """

    step: int
    prompt_id: str
    prompt: str
    ground_truth: dict[str, Any]
    objectives: list[str]
    sample: int
    text: str
    answers: list[dict[str, Any]]
    set_reward: float
    advantage: float
    finish_reason: str
    tokens: int = field(default=0)


def step_files(run: Run) -> dict[int, list[Path]]:
    """The run's rollout files by step, in order; of several processes one file each."""
    files: dict[int, list[Path]] = {}
    for path in sorted((run.folder / "rollouts").glob("step_*.parquet")):
        match = _FILE.fullmatch(path.name)
        if match:
            files.setdefault(int(match.group(1)), []).append(path)
    return files


def spread(items: Sequence[T], most: int) -> list[T]:
    """At most `most` of the items at even distances, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    if most < 2:
        return [items[-1]][:most]
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def read_columns(run: Run, path: Path, columns: Sequence[str]) -> pa.Table | None:
    """Columns of a file, dotted names inside lists; None, with a note, if it is unreadable."""
    try:
        return pq.ParquetFile(path).read(columns=list(columns), use_threads=False)
    except (OSError, pa.ArrowException) as error:
        run.note(f"rollouts/{path.name} could not be read ({first_line(error)})")
        return None


def read_groups(run: Run, path: Path) -> Iterator[list[StoredRollout]]:
    """The groups of a file, in order: a group begins with its rollout 0."""
    table = read_columns(run, path, [*_TEXT_COLUMNS, "completion_ids"])
    if table is None:
        return
    tokens = pc.list_value_length(table["completion_ids"]).to_pylist()  # type: ignore[attr-defined]
    table = table.drop_columns(["completion_ids"])
    group: list[StoredRollout] = []
    for start in range(0, table.num_rows, 64):  # Python objects of a few rollouts at a time
        for offset, record in enumerate(table.slice(start, 64).to_pylist()):
            if record["sample"] == 0 and group:
                yield group
                group = []
            group.append(_rollout(record, group, tokens[start + offset] or 0))
    if group:
        yield group


def _rollout(record: dict[str, Any], group: list[StoredRollout], tokens: int) -> StoredRollout:
    """A rollout; prompt and ground truth stand with the first one of a group only."""
    truth = json.loads(record.pop("ground_truth") or "{}")
    if group:
        record["prompt"], truth = group[0].prompt, group[0].ground_truth
    record["prompt"] = record["prompt"] or ""
    record["text"] = record["text"] or ""
    return StoredRollout(**record, ground_truth=truth, tokens=tokens)


def sample_groups(run: Run, most: int, num_steps: int = 8) -> list[list[StoredRollout]]:
    """Whole groups of at most `most` rollouts in all, from steps spread over the training.

    As many steps as there is room for a group of each; a single group is cut short if it is larger.
    """
    steps = step_files(run)
    if not steps or not most:
        return []
    room_for = most // _group_size(run, next(iter(steps.values()))[0])
    chosen = spread(list(steps), max(min(num_steps, room_for), 1))
    groups: list[list[StoredRollout]] = []
    for number, step in enumerate(chosen):
        left = most - sum(map(len, groups))
        share = left // (len(chosen) - number)
        taken: list[list[StoredRollout]] = []
        for path in steps[step]:
            for group in read_groups(run, path):
                room = share - sum(map(len, taken))
                if room <= 0 or (taken and len(group) > room):
                    break
                taken.append(group[:room])
        groups += taken
    return groups


def _group_size(run: Run, path: Path) -> int:
    """Rollouts of a group in a file; 1 if that is not known."""
    table = read_columns(run, path, ["sample"])
    if table is None or table.num_rows == 0:
        return 1
    return int(pc.max(table["sample"]).as_py()) + 1  # type: ignore[attr-defined]


def objectives_of(run: Run) -> list[str]:
    """Names of the task's objectives: as the summary says, else those of a stored rollout."""
    names = run.summary.get("objectives")
    if isinstance(names, list):
        return [str(name) for name in names]
    for paths in step_files(run).values():
        table = read_columns(run, paths[0], ["objectives"])
        if table is not None and table.num_rows:
            return table["objectives"][0].as_py()
    return []
