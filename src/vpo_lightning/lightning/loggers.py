"""The metrics of a run as plain files, whatever other logger is used."""

from __future__ import annotations

import csv
import json
import os
from argparse import Namespace
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only


class FileLogger(Logger):
    """Appends each step's metrics to ``metrics.jsonl``; ``metrics.csv`` is made from it at the end.

    Args:
        folder: The run folder.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._path = folder / "metrics.jsonl"
        self._validation: dict[str, float] = {}

    @property
    def name(self) -> str:
        """Name of the logger."""
        return "files"

    @property
    def version(self) -> str:
        """The run folder has one version."""
        return ""

    @property
    def save_dir(self) -> str:
        """The run folder."""
        return str(self._path.parent)

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Appends one line: the step (completed training steps) and its metrics.

        Lightning logs a step's validation before its training figures; they are one line.
        """
        values = {key: value for key, value in metrics.items() if key != "epoch"}
        if all(key.startswith("val/") for key in values):
            self._validation = values
            return
        record = {"step": step, **values, **self._validation}
        self._validation = {}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any
    ) -> None:
        """Does nothing: the run folder holds the resolved config."""

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Writes ``metrics.csv``."""
        del status
        if self._path.exists():
            write_csv(read_metrics(self._path.parent), self._path.with_suffix(".csv"))


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The records of a run's ``metrics.jsonl``; a line cut short by a kill is left out."""
    records = []
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return records


def remove_metrics_after(folder: Path, step: int) -> None:
    """Keeps the records up to `step`: what a resumed run logs again must not stand twice."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return
    kept = [record for record in read_metrics(folder) if record["step"] <= step]
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(json.dumps(r) + "\n" for r in kept), encoding="utf-8")
    os.replace(temporary, path)


def write_csv(records: list[dict[str, Any]], path: Path) -> None:
    """The records as a table with one column for each key."""
    keys = list(dict.fromkeys(key for record in records for key in record))
    temporary = path.with_suffix(".csv.tmp")
    with temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, keys)
        writer.writeheader()
        writer.writerows(records)
    os.replace(temporary, path)
