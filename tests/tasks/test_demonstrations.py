"""What a warm-up shows is read by the task's own format, differs, and earns something."""

from __future__ import annotations

from random import Random

import pytest

from vpo_lightning.errors import ConfigError
from vpo_lightning.prompting import GoalConditioned, MultiAnswer, SingleAnswer
from vpo_lightning.sandbox.sandbox import Sandbox
from vpo_lightning.scoring import score_answers
from vpo_lightning.task import Task
from vpo_lightning.tasks.eureqa.task import EureqaTask
from vpo_lightning.tasks.livecodebench.task import LiveCodeBenchTask
from vpo_lightning.tasks.maze.task import MazeTask
from vpo_lightning.tasks.musique.task import MusiqueTask
from vpo_lightning.tasks.toolrl.task import ToolrlTask
from vpo_lightning.tasks.ultrafeedback.task import UltrafeedbackTask


@pytest.mark.parametrize(
    "task",
    [
        MazeTask(size=5),
        MusiqueTask(),
        EureqaTask(),
        ToolrlTask(),
        UltrafeedbackTask(),
        LiveCodeBenchTask(sandbox=Sandbox(slots=1)),
    ],
    ids=lambda task: type(task).__name__,
)
def test_demonstrations_are_parsed_differ_and_earn_something(task: Task) -> None:
    rng, vectors = Random(0), []
    rows = task.rows("train")
    for i in range(min(len(rows), 4)):
        for style in (SingleAnswer(), MultiAnswer(3), GoalConditioned()):
            answers = [task.demonstrate(rows[i], rng) for _ in range(style.num_answers)]
            parsed = style.parse(task, style.render(task, answers))
            scored = score_answers(task, rows[i], parsed, deduplicate=False)
            assert scored.num_parsed == style.num_answers
            vectors += scored.matrix
    assert len({tuple(vector) for vector in vectors}) > 1
    earning = sum(any(vector) for vector in vectors)
    # One published-like row of ratings holds a completion that is worst under all aspects.
    assert earning >= 0.8 * len(vectors)


def test_a_task_without_demonstrations_says_so() -> None:
    online = UltrafeedbackTask(mode="online", judge=object())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"no demonstrations .* set warmup=none"):
        online.demonstrate(online.rows("train")[0], Random(0))
