"""Prompt rows from data files: where a split comes from, what is kept, rows made on demand."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

from vpo_lightning.errors import ConfigError
from vpo_lightning.task import PromptRow, Task
from vpo_lightning.tasks.fields import Fields
from vpo_lightning.tasks.records import HubRecords, Records, open_records, require_hub

SPLITS = ("train", "test")

Item = TypeVar("Item")

_log = logging.getLogger(__name__)


class SkipRow(ConfigError):
    """A row that is well formed and not used; its text is the reason that is counted and logged."""


class OtherSplit(SkipRow):
    """A row of a file that holds several splits, and not of the one that is asked for."""


class LazyRows(Sequence[PromptRow], Generic[Item]):
    """Prompt rows, each made by `make_row(item)` whenever it is asked for.

    Attributes:
        counts: What was left out while loading, by reason.
    """

    def __init__(
        self,
        items: Sequence[Item],
        make_row: Callable[[Item], PromptRow],
        counts: Mapping[str, int] | None = None,
    ) -> None:
        self._items = items
        self._make_row = make_row
        self.counts: dict[str, int] = dict(counts or {})

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> PromptRow: ...

    @overload
    def __getitem__(self, index: slice) -> list[PromptRow]: ...

    def __getitem__(self, index: int | slice) -> PromptRow | list[PromptRow]:
        if isinstance(index, slice):
            return [self._make_row(item) for item in self._items[index]]
        return self._make_row(self._items[index])

    def select(self, positions: Sequence[int]) -> LazyRows[Item]:
        """The rows at `positions`, in that order."""
        return LazyRows([self._items[i] for i in positions], self._make_row, self.counts)


def join_rows(*parts: LazyRows[Any]) -> LazyRows[tuple[LazyRows[Any], int]]:
    """The rows of several parts, one after the other."""
    items = [(part, i) for part in parts for i in range(len(part))]
    counts: Counter[str] = sum((Counter(part.counts) for part in parts), Counter())
    return LazyRows(items, lambda item: item[0][item[1]], counts)


def load_rows(
    records: Records,
    make_row: Callable[[Fields, int], PromptRow],
    left_out: Callable[[PromptRow], Mapping[str, int]] = lambda row: {},
) -> LazyRows[int]:
    """The prompt rows of a data file.

    Every row is made once, and thrown away, so that a malformed one is found now and not in the
    middle of a training run.

    Args:
        records: The stored rows.
        make_row: Makes the prompt row of a record and its number (from 1); raises SkipRow to leave
            it out.
        left_out: What was left out of a row that is kept, by reason.

    Raises:
        ConfigError: A row is malformed, two have the same id, or all of them were left out.
    """
    kept: list[int] = []
    first_with: dict[str, int] = {}
    counts: Counter[str] = Counter()
    usual: set[str] = set()
    for index in range(len(records)):
        number = records.number(index)
        try:
            row = make_row(records[index], number)
        except SkipRow as reason:
            counts[f"rows: {reason}"] += 1
            if isinstance(reason, OtherSplit):
                usual.add(f"rows: {reason}")
            continue
        if row.id in first_with:
            raise ConfigError(
                f"{records.source}, row {number} ({records.key}): the id {row.id!r} is that of "
                f"row {first_with[row.id]} too; ids must differ"
            )
        first_with[row.id] = number
        kept.append(index)
        counts.update(left_out(row))
    counts = +counts  # without the reasons that never occurred
    for reason, count in counts.items():
        level = logging.INFO if reason in usual else logging.WARNING
        _log.log(level, "%s, %d rows: left out %d: %s", records.source, len(records), count, reason)
    if not kept:
        raise ConfigError(f"{records.key}={records.source}: no row is left; {dict(counts)}")
    return LazyRows(kept, lambda i: make_row(records[i], records.number(i)), counts)


@dataclass(frozen=True)
class Source:
    """Where the splits of a task are stored.

    Attributes:
        folder: Holds ``train.jsonl`` and ``test.jsonl``, the authored rows that come with the task;
            used for a split that nothing else is said about.
        train_path: File of the training rows, or None.
        test_path: File of the test rows, or None.
        hub_id: Data set of the Hugging Face hub for the splits without a file, or None.
        hub_splits: Names of the splits train and test on the hub.
    """

    folder: Path
    train_path: str | None = None
    test_path: str | None = None
    hub_id: str | None = None
    hub_splits: Mapping[str, str] = field(default_factory=dict)

    def records(self, split: str) -> Records:
        """The stored rows of a split.

        Raises:
            ConfigError: An unknown split, or data that cannot be read.
        """
        path = {"train": self.train_path, "test": self.test_path}.get(check_split(split))
        if path is not None:
            return open_records(path, f"task.{split}_path")
        if self.hub_id is not None:
            return HubRecords(self.hub_id, self.hub_splits.get(split, split))
        return open_records(self.folder / f"{split}.jsonl", f"task.{split}_path")

    def check(self, task: Task) -> None:
        """Reads the splits that lie in files; of the hub only checks that it could be read."""
        paths = {"train": self.train_path, "test": self.test_path}
        for split, path in paths.items():
            if self.hub_id is None or path is not None:
                task.rows(split)
            else:
                require_hub(self.hub_id)


def check_split(split: str) -> str:
    """The split, if it is train or test; raises ConfigError otherwise."""
    if split not in SPLITS:
        raise ConfigError(f"split {split!r}: the data have the splits {' and '.join(SPLITS)}")
    return split
