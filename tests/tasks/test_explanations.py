"""A reader of the rollouts sees what was found in an answer and what was wanted."""

from __future__ import annotations

import pytest

from vpo_lightning.sandbox.sandbox import Sandbox
from vpo_lightning.task import Task
from vpo_lightning.tasks.eureqa.task import EureqaTask
from vpo_lightning.tasks.livecodebench.task import LiveCodeBenchTask
from vpo_lightning.tasks.maze.task import MazeTask
from vpo_lightning.tasks.musique.task import MusiqueTask
from vpo_lightning.tasks.toolrl.task import ToolrlTask
from vpo_lightning.tasks.ultrafeedback.task import UltrafeedbackTask
from vpo_lightning.verdict import judge_answer

GRID = {"grid_text": "S . G\n. . L\nD . E", "start": [0, 0], "end": [2, 2], "max_steps": 5}
QUESTION = {
    "answer": "Paris",
    "answer_aliases": ["Lutetia"],
    "supporting_indices_ordered": [3, 7],
}
CALLS = {"tool_calls": [{"name": "weather", "parameters": {"city": "Rome", "days": 2}}]}
TESTS = {
    "testtype": "stdin",
    "fn_name": "",
    "inputs": ["1", "2", "3", "4"],
    "outputs": ["1", "2", "4", "4"],
}


@pytest.mark.parametrize(
    ("task", "truth", "answer", "expected"),
    [
        (
            MazeTask(size=5),
            GRID,
            "RIGHT RIGHT DOWN DOWN DOWN UP UP",
            "7 moves, 4 of at most 5 used, to the exit; gold 1 of 1, diamonds 0 of 1, lava 1 of 1",
        ),
        (
            MazeTask(size=5),
            GRID,
            "UP",
            "1 moves, 1 of at most 5 used, to [0, 0], not the exit; gold 0 of 1, diamonds 0 of 1, "
            "lava 0 of 1",
        ),
        (
            MusiqueTask(),
            QUESTION,
            "<support>7, 2</support><answer>Rome</answer>",
            "cited 7, 2, wanted 3, 7; answered 'Rome', wanted 'Paris' or 'Lutetia'",
        ),
        (
            MusiqueTask(),
            QUESTION,
            "no idea",
            "cited nothing, wanted 3, 7; answered '', wanted 'Paris' or 'Lutetia'",
        ),
        (
            EureqaTask(),
            {"chain_entities": ["Ann", "Bob", "Cid", "Dan", "Eve"]},
            "<entity_A>ann</entity_A><entity_C>Zoe</entity_C>",
            "A 'ann'; B '', wanted 'Bob'; C 'Zoe', wanted 'Cid'; D '', wanted 'Dan'; "
            "E '', wanted 'Eve'",
        ),
        (
            ToolrlTask(),
            CALLS,
            '<think></think><tool_call>{"name": "now", "parameters": {"zone": "CET"}}</tool_call>',
            "called now(zone='CET'); wanted weather(city='Rome', days=2)",
        ),
        (
            ToolrlTask(),
            CALLS,
            "<tool_call>oops</tool_call>",
            "no think block; called nothing that can be read; wanted weather(city='Rome', days=2)",
        ),
        (
            UltrafeedbackTask(),
            {"ratings": [[5, 4, 3, 2], [1, 1, 1, 1]]},
            "<choice>1</choice>",
            "chose 1: instruction_following 5 of 5, honesty 4 of 5, truthfulness 3 of 5, "
            "helpfulness 2 of 5",
        ),
        (
            UltrafeedbackTask(),
            {"ratings": [[1] * 4] * 2},
            "<choice>9</choice>",
            "chose 9 of 1 to 2",
        ),
        (
            LiveCodeBenchTask(sandbox=Sandbox(slots=1, test_seconds=0.5)),
            TESTS,
            "n = int(input())\nprint(n if n < 4 else 1 / 0)",
            "2 of 4 tests passed; test 3: wrote '3\\n', wanted '4'; test 4: ended with an error",
        ),
    ],
)
def test_an_explanation_says_what_was_found_and_wanted(
    task: Task, truth: dict, answer: str, expected: str
) -> None:
    row = task.row_from_ground_truth("a", truth)
    assert judge_answer(task, row, answer, explain=True).explanation == expected


def test_only_what_waits_for_others_may_block() -> None:
    tasks = (MazeTask(), MusiqueTask(), EureqaTask(), ToolrlTask(), UltrafeedbackTask())
    assert not any(task.may_block for task in (*tasks, LiveCodeBenchTask()))
    online = UltrafeedbackTask(mode="online", judge=object())  # type: ignore[arg-type]
    assert online.may_block
