"""Programs to be evolved: function minimisation and circle packing, run in the sandbox."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from vpo_lightning.errors import ConfigError
from vpo_lightning.sandbox.results import Outcome
from vpo_lightning.sandbox.sandbox import Sandbox
from vpo_lightning.task import Objective, PromptRow, Task
from vpo_lightning.tasks.livecodebench.formats import FencedPrograms
from vpo_lightning.tasks.loading import check_split
from vpo_lightning.tasks.program_search.problems import PROBLEMS
from vpo_lightning.tasks.settings import check_settings

_BREVITY = Objective("brevity", "a short program")
_HALF_LENGTH = 1000  # characters of a program whose brevity is one half


@dataclass(kw_only=True, eq=False)
class ProgramSearchTask(Task):
    """Two problems of the kind that evolutionary search over programs is shown on.

    An answer is a program; what its ``solve`` returns is measured outside the sandbox. Both splits
    hold the same problems: there is nothing to learn from them but their own solution.

    Args:
        problem: The name of one, or ``all``.
        sandbox: Runs the programs.

    Raises:
        ConfigError: No such problem.
    """

    problem: str = "all"
    sandbox: Sandbox = field(default_factory=Sandbox)

    objectives = (_BREVITY,)
    answer_format = FencedPrograms()
    drops_unparsed = True
    pads_answers = True

    def __post_init__(self) -> None:
        """Checks the settings."""
        check_settings(self)
        if self.problem not in (*PROBLEMS, "all"):
            options = ", ".join(("all", *PROBLEMS))
            raise ConfigError(f"task.problem={self.problem}: expected one of {options}")

    @override
    def rows(self, split: str) -> Sequence[PromptRow]:
        """The problems; evolution starts from `start_program` of the ground truth."""
        check_split(split)
        names = list(PROBLEMS) if self.problem == "all" else [self.problem]
        return [
            PromptRow(
                id=name,
                prompt=PROBLEMS[name].question,
                ground_truth={"problem": name, "start_program": PROBLEMS[name].start},
                objectives=(*(Objective(*o) for o in PROBLEMS[name].objectives), _BREVITY),
            )
            for name in names
        ]

    @override
    def score(self, answer: str, row: PromptRow) -> list[float]:
        """The problem's own measures, and brevity; zeros for a program that solves nothing."""
        problem = PROBLEMS[row.ground_truth["problem"]]
        outcomes = self.sandbox.run_tests(answer, problem.inputs, "solve")
        rewards = problem.measure([_returned(outcome) for outcome in outcomes])
        brevity = _HALF_LENGTH / (_HALF_LENGTH + len(answer)) if any(rewards) else 0.0
        return [*rewards, brevity]

    @override
    def is_parsed(self, answer: str) -> bool:
        """Whether there is a function ``solve`` in the text."""
        return "def solve" in answer

    @override
    def duplicate_key(self, answer: str, rewards: Sequence[float]) -> Hashable:
        """The program without its layout."""
        return " ".join(answer.split())

    @override
    def counters(self) -> Mapping[str, int]:
        """Runs that were stopped at a deadline, and runs that the sandbox lost."""
        counts = self.sandbox.counts
        found = {"timed_out_runs": counts["timeout"], "lost_runs": counts["lost"]}
        return {name: count for name, count in found.items() if count}

    @override
    def check(self) -> None:
        """Tries to get out of the sandbox."""
        self.sandbox.check()


def _returned(outcome: Outcome) -> Any:
    """The JSON value that a run returned; None if it failed."""
    if outcome.status != "ok":
        return None
    try:
        return json.loads(outcome.stdout)
    except (ValueError, RecursionError):
        return None
