"""What the tasks of runs add to a report: pictures of answers and the held-out prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydra.errors import InstantiationException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vpo_lightning import build
from vpo_lightning.errors import ConfigError
from vpo_lightning.evaluation.report.folders import Run, first_line
from vpo_lightning.task import Objective, PromptRow, Task, first_rows


class NoPictures:
    """Texts and rewards only; no task is imported."""

    def picture(self, run: Run, row: Mapping[str, Any], answers: list[Any]) -> None:
        """Nothing."""

    def held_out(self, run: Run, prompt_id: str) -> None:
        """Nothing."""


class TaskPictures:
    """Pictures by the tasks of the runs' configs, each built once.

    A task that cannot be built here, or that fails to draw an answer, is said in the run's notes.
    """

    def __init__(self) -> None:
        self._tasks: dict[str, Task | None] = {}
        self._rows: dict[str, dict[str, PromptRow]] = {}

    def picture(self, run: Run, row: Mapping[str, Any], answers: list[Any]) -> list[Any] | None:
        """The task's picture of a chain as nested lists, or None."""
        task = self._task(run)
        if task is None:
            return None
        objectives = tuple(Objective(name, name) for name in row["objectives"])
        prompt = PromptRow(row["prompt_id"], row["prompt"], row["ground_truth"], objectives)
        texts = [answer["text"] or "" for answer in answers]
        rewards = [answer["rewards"] for answer in answers]
        try:
            drawn = task.picture(prompt, texts, rewards)
        except Exception as error:  # a user's own code: the report goes on without the picture
            run.note(f"the task could not draw {prompt.id}: {type(error).__name__}: {error}")
            return None
        return None if drawn is None else drawn.to_json()

    def held_out(self, run: Run, prompt_id: str) -> Mapping[str, Any] | None:
        """The row of a held-out prompt, or None where the task cannot give it."""
        task = self._task(run)
        if task is None:
            return None
        row = self._test_rows(run, task).get(prompt_id)
        if row is None:
            return None
        return {
            "prompt_id": row.id,
            "prompt": row.prompt,
            "ground_truth": row.ground_truth,
            "objectives": [objective.name for objective in row.objectives],
        }

    def _task(self, run: Run) -> Task | None:
        key = _key(run)
        if key not in self._tasks:
            self._tasks[key] = self._built(run)
        return self._tasks[key]

    def _built(self, run: Run) -> Task | None:
        if not isinstance(run.config.get("task"), dict):
            return None
        try:
            return build.build_task(OmegaConf.create({"task": run.config["task"]}))
        except (InstantiationException, OmegaConfBaseException, ConfigError) as error:
            run.note(f"no pictures: its task cannot be built here ({first_line(error)})")
            return None

    def _test_rows(self, run: Run, task: Task) -> dict[str, PromptRow]:
        """The test prompts that pools are about, by id."""
        key = _key(run)
        if key not in self._rows:
            evaluation = run.config.get("evaluation")
            count = evaluation.get("num_prompts") if isinstance(evaluation, dict) else None
            try:
                rows = first_rows(task.rows("test"), count if isinstance(count, int) else None)
            except (ConfigError, OSError) as error:
                run.note(f"its held-out prompts cannot be read here ({first_line(error)})")
                rows = []
            self._rows[key] = {row.id: row for row in rows}
        return self._rows[key]


def _key(run: Run) -> str:
    return repr(run.config.get("task")) + repr(run.config.get("evaluation"))
