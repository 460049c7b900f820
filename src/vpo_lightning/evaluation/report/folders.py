"""The run folders that a report is about, and the plain files in them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from vpo_lightning.errors import ConfigError

_NOT_RUNS = {"checkpoints", "policy", "pools", "rollouts", "wandb"}
SEARCH_LOG = "events.jsonl"
"""File of a folder that `vpo-search` wrote."""


@dataclass
class Run:
    """What the small files of one run folder hold; whatever is missing is empty.

    Attributes:
        folder: The run folder.
        config: The resolved config.
        summary: `summary.json`; empty for a run that has not ended.
        evaluation: `eval.json`.
        metrics: The records of `metrics.jsonl`, by step.
        notes: What could not be read, in words; shown in the report.
        label: Name in the report, unique among its runs.
    """

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    label: str = ""

    def note(self, text: str) -> None:
        """Adds a note, if it is not there yet."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def method(self) -> str:
        """Name of the method, or of the folder where the config has none."""
        return str(self.config.get("name") or self.folder.name)

    @property
    def seed(self) -> Any:
        """The run's seed."""
        return self.config.get("seed")

    @property
    def status(self) -> str:
        """``finished``, ``stopped``, or ``unfinished`` (or crashed).

        ``evaluated`` and ``searched`` without training.
        """
        return str(self.summary.get("status", "unfinished"))

    @property
    def steps(self) -> int:
        """Completed training steps."""
        last = self.metrics[-1].get("step") if self.metrics else 0
        return int(self.summary.get("steps") or last or 0)


def find_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs in or below the given folders, read and labelled, in the order of their paths.

    A folder that `vpo-eval` or `vpo-search` wrote counts as a run without training.

    Raises:
        ConfigError: A path is no folder, or there is no run in any of them.
    """
    folders: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise ConfigError(f"{path}: no such folder; expected a run folder or a sweep's folder")
        folders += [found for found in _run_folders(path) if found not in folders]
    if not folders:
        shown = ", ".join(map(str, paths))
        raise ConfigError(
            f"{shown}: no run here; expected a folder with a run's config.yaml, or an eval.json, "
            "in it or below it"
        )
    runs = [read_run(folder) for folder in folders]
    for run, label in zip(runs, _labels(runs), strict=True):
        run.label = label
    return runs


def _run_folders(path: Path) -> Iterator[Path]:
    """Folders of runs or of evaluations, a sweep's subfolders in the order of their numbers."""
    for place, folders, files in os.walk(path):
        if "config.yaml" in files or "eval.json" in files:
            folders.clear()
            yield Path(place)
        folders[:] = sorted(
            (f for f in folders if f not in _NOT_RUNS and not f.startswith(".")), key=_number
        )


def _number(name: str) -> tuple[int, str]:
    head = name.split("_", 1)[0]
    return (int(head) if head.isdecimal() and len(head) < 9 else -1, name)


def read_run(folder: Path) -> Run:
    """The small files of a run folder."""
    run = Run(folder)
    if (folder / SEARCH_LOG).exists():
        return _searched(run)
    if not (folder / "config.yaml").exists():  # an evaluation of some policy, no training
        run.evaluation = _read_json(run, "eval.json")
        run.summary = {"status": "evaluated"}
        return run
    try:
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        run.config = config if isinstance(config, dict) else {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        run.note(f"config.yaml could not be read ({first_line(error)})")
    run.summary = _read_json(run, "summary.json")
    run.evaluation = _read_json(run, "eval.json")
    run.metrics = read_json_lines(folder / "metrics.jsonl")
    if not run.metrics:
        run.note("no training step has ended yet (metrics.jsonl is empty or missing)")
    return run


def _searched(run: Run) -> Run:
    """A search with some policy as a run without training, named by policy and search."""
    result = _read_json(run, "result.json")
    names = [str(result[key]) for key in ("policy_name", "name") if result.get(key)]
    run.config = {"name": ": ".join(names) or run.folder.name}
    run.summary = {"status": "searched" if result else "unfinished"}
    if not result:
        run.note("the search has not ended yet (result.json is missing)")
    return run


def _read_json(run: Run, name: str) -> dict[str, Any]:
    """A JSON object; empty, with a note, if the file is broken."""
    path = run.folder / name
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        run.note(f"{name} could not be read ({first_line(error)})")
        return {}
    return value if isinstance(value, dict) else {}


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON objects; a line cut short by a kill is left out."""
    if not path.exists():
        return []
    records: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def first_line(error: Exception) -> str:
    """The first line of an error's text, or its kind where it has none."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _labels(runs: Sequence[Run]) -> list[str]:
    """Method; with task, model, preset or seed where those differ; with the folder if they do not.

    Where only the method differs its name is enough.
    """
    several = len(runs) > 1
    parts: list[list[str]] = [[run.method] for run in runs]
    for describe in (task_name, model_name, preset_name, _seed):
        values = [describe(run) for run in runs]
        if several and len({value for value in values if value}) > 1:
            for part, value in zip(parts, values, strict=True):
                part.append(value)
    labels = [", ".join(word for word in part if word) for part in parts]
    return [
        label if labels.count(label) == 1 else f"{label} ({run.folder.name or run.folder})"
        for label, run in zip(labels, runs, strict=True)
    ]


def task_name(run: Run) -> str:
    """The task in one word: its class without the ending."""
    target = str(_section(run, "task").get("_target_", ""))
    return target.rsplit(".", 1)[-1].removesuffix("Task").lower()


def model_name(run: Run) -> str:
    """The last part of the model's path, or what builds it."""
    model = _section(run, "model")
    if model.get("path"):
        return str(model["path"]).rstrip("/").rsplit("/", 1)[-1]
    return str(model.get("_target_", "")).rsplit(".", 1)[-1]


def preset_name(run: Run) -> str:
    """Whose conventions the run follows."""
    name = _section(run, "preset").get("name")
    return f"preset {name}" if name else ""


def _seed(run: Run) -> str:
    return "" if run.seed is None else f"seed {run.seed}"


def _section(run: Run, name: str) -> dict[str, Any]:
    value = run.config.get(name)
    return value if isinstance(value, dict) else {}
