"""An append-only log of JSON lines that survives being cut off at any byte."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class EventLog:
    """Records of what a search cannot compute again for nothing.

    A record counts once its line ends with a newline; what a killed process left behind the last
    newline is removed when the log is opened.

    Args:
        path: The file; its folder exists.

    Attributes:
        length: Complete records.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.length = 0
        end = 0
        if path.exists():
            with path.open("rb") as file:
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    end += len(line)
                    self.length += 1
        self._file = path.open("ab")
        self._file.truncate(end)

    def recorded(self) -> Iterator[Any]:
        """The records that were there when the log was opened."""
        with self.path.open("rb") as file:
            for _ in range(self.length):
                yield json.loads(file.readline())

    def append(self, record: Any) -> None:
        """Adds a record; it is on the disk when this returns."""
        self._file.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
