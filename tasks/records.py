"""The rows of a data set as they are stored: JSON lines, parquet, or a data set of the hub.

Rows are read when they are asked for, so that a file may be larger than the memory.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from vpo_lightning.errors import ConfigError
from vpo_lightning.tasks.fields import Fields


class Records(Sequence[Fields]):
    """Rows by position, from 0; messages and ids count from 1, like the lines of an editor.

    Attributes:
        source: The file or data set, for messages.
        key: The config key that names it.
    """

    source: str
    key: str

    @overload
    def __getitem__(self, index: int) -> Fields: ...

    @overload
    def __getitem__(self, index: slice) -> list[Fields]: ...

    def __getitem__(self, index: int | slice) -> Fields | list[Fields]:
        chosen = range(len(self))[index]
        if isinstance(chosen, range):
            return [self[i] for i in chosen]
        place = self._place(chosen)
        return Fields(self._read(chosen, place), place)

    @abstractmethod
    def _read(self, index: int, place: str) -> Mapping[str, Any]:
        """The row at `index`; `place` is for an error's message."""

    def number(self, index: int) -> int:
        """The number that messages give the row at `index`."""
        return index + 1

    def _place(self, index: int) -> str:
        return f"{self.source}, row {self.number(index)} ({self.key})"


def open_records(path: str | Path, key: str) -> Records:
    """The rows of a ``.jsonl`` or ``.parquet`` file.

    Raises:
        ConfigError: The file is missing, unreadable, empty, or of another kind.
    """
    path = Path(path).expanduser()
    kinds = {".jsonl": JsonLines, ".parquet": Parquet}
    if path.suffix not in kinds:
        raise ConfigError(f"{key}={path}: expected a file that ends in .jsonl or .parquet")
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "there is no such file"
        raise ConfigError(f"{key}={path}: {problem}; expected a .jsonl or .parquet file")
    try:
        records = kinds[path.suffix](path, key)
    except OSError as error:
        raise ConfigError(f"{key}={path}: cannot be read ({error.strerror or error})") from error
    if not len(records):
        raise ConfigError(f"{key}={path}: the file holds no rows")
    return records


class JsonLines(Records):
    """One JSON object a line; blank lines are skipped, a row's number is its line's."""

    def __init__(self, path: Path, key: str) -> None:
        """Finds the lines; parses none."""
        self.source, self.key = str(path), key
        self._starts, self._numbers = array("Q"), array("Q")
        position = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    self._starts.append(position)
                    self._numbers.append(number)
                position += len(line)

    def __len__(self) -> int:
        return len(self._starts)

    def number(self, index: int) -> int:
        """The line of the row at `index`."""
        return self._numbers[index]

    def _read(self, index: int, place: str) -> Mapping[str, Any]:
        with open(self.source, "rb") as file:
            file.seek(self._starts[index])
            line = file.readline()
        return parse_object(line, place)


class Parquet(Records):
    """The rows of a parquet file; one row group at a time is held in memory."""

    def __init__(self, path: Path, key: str) -> None:
        """Reads the footer."""
        import pyarrow
        import pyarrow.parquet

        self.source, self.key = str(path), key
        try:
            metadata = pyarrow.parquet.read_metadata(path)
        except pyarrow.ArrowException as error:
            raise ConfigError(
                f"{key}={path}: not a complete parquet file ({str(error).splitlines()[0]})"
            ) from error
        self._ends: list[int] = []
        for group in range(metadata.num_row_groups):
            rows = metadata.row_group(group).num_rows
            self._ends.append((self._ends[-1] if self._ends else 0) + rows)
        self._held: tuple[int, Any] = (-1, None)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _read(self, index: int, place: str) -> Mapping[str, Any]:
        import pyarrow
        import pyarrow.parquet

        group = bisect_right(self._ends, index)
        if self._held[0] != group:
            try:
                table = pyarrow.parquet.ParquetFile(self.source).read_row_group(group)
            except (pyarrow.ArrowException, OSError) as error:
                raise ConfigError(
                    f"{place}: the file is damaged ({str(error).splitlines()[0]})"
                ) from error
            self._held = (group, table)
        first = self._ends[group - 1] if group else 0
        return self._held[1].slice(index - first, 1).to_pylist()[0]


class HubRecords(Records):
    """A split of a data set of the Hugging Face hub, or of a folder in its layout."""

    def __init__(self, hub_id: str, split: str) -> None:
        """Downloads the split on first use; later it is read from the library's cache.

        Raises:
            ConfigError: The extra ``hub`` is not installed, or the data set cannot be loaded.
        """
        self.source, self.key = f"{hub_id}[{split}]", "task.hub_id"
        require_hub(hub_id)
        import datasets
        from datasets.exceptions import DatasetsError

        try:
            self._rows = datasets.load_dataset(hub_id, split=split)
        except (OSError, ValueError, RuntimeError, DatasetsError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"task.hub_id={hub_id}: the split {split} cannot be loaded ({reason}); or set "
                f"task.train_path and task.test_path to files"
            ) from error

    def __len__(self) -> int:
        return len(self._rows)

    def _read(self, index: int, place: str) -> Mapping[str, Any]:
        del place
        return self._rows[index]


def require_hub(hub_id: str) -> None:
    """Refuses a hub id where the library that reads it is not installed."""
    from importlib.util import find_spec

    if find_spec("datasets") is None:
        raise ConfigError(
            f"task.hub_id={hub_id}: reading the hub needs `pip install vpo-lightning[hub]`; or set "
            f"task.train_path and task.test_path to files"
        )


def parse_object(line: str | bytes, place: str) -> dict[str, Any]:
    """The JSON object in a line.

    Raises:
        ConfigError: The line is not UTF-8, not complete JSON, or not an object.
    """
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{place}: not complete JSON at column {error.colno} ({error.msg}); expected one "
            f"object a line"
        ) from error
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        reason = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise ConfigError(f"{place}: {reason}; expected one JSON object a line") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{place}: expected a JSON object, got {type(value).__name__}")
    return value
