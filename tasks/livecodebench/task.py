"""LiveCodeBench: programs for contest problems, run on tests (Jain et al., arXiv:2403.07974)."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from typing_extensions import override

from vpo_lightning.errors import ConfigError
from vpo_lightning.picture import Element
from vpo_lightning.sandbox.results import Outcome
from vpo_lightning.sandbox.sandbox import Sandbox
from vpo_lightning.task import Objective, PromptRow, Task
from vpo_lightning.tasks.chat_rows import is_chat_row, read_chat_row
from vpo_lightning.tasks.fields import Fields
from vpo_lightning.tasks.livecodebench.comparison import COMPARISONS, equal_text, equal_value
from vpo_lightning.tasks.livecodebench.demonstrations import demonstration
from vpo_lightning.tasks.livecodebench.formats import FencedPrograms
from vpo_lightning.tasks.livecodebench.picture import passing_table
from vpo_lightning.tasks.livecodebench.rows import (
    MAX_TESTS,
    Selection,
    chat_row,
    parse_day,
    problem_row,
    truth_row,
)
from vpo_lightning.tasks.loading import LazyRows, Source, load_rows
from vpo_lightning.tasks.settings import check_settings
from vpo_lightning.tasks.text import quoted

PROBLEMS = Path(__file__).parent / "data" / "problems.jsonl"

_TOLD = 3  # failed tests in an explanation
_ENDINGS = {"error": "ended with an error", "timeout": "ran out of time", "lost": "was lost"}

# Parsing an untrusted program can crash the interpreter that does it, so this runs in the sandbox.
_SYNTAX_TREE = "import ast; print(ast.dump(ast.parse(sys.stdin.read())))"


@dataclass(kw_only=True, eq=False)
class LiveCodeBenchTask(Task):
    """Contest problems; K is the number of a problem's tests, each worth 0 or 1.

    Two answers are duplicates if their syntax trees are equal, or, where one has none, their texts
    in lower case with white space collapsed. Answers without a program are dropped; nothing is
    padded.

    Departures from the public reference implementation: the function of a functional problem may be
    a method of ``class Solution`` (there only a global function counts); text that is no string
    scores zero (there it raises an error); private tests in plain JSON are read.

    Args:
        train_path: File of problems, in the data set's own schema (those before `train_before` are
            used) or as written for the public reference implementation (all are); None takes the
            authored ones.
        test_path: The same for testing; may be the same file.
        hub_id: Data set of the Hugging Face hub whose split ``test`` holds the problems.
        train_before: Day; earlier contests train.
        test_before: Day; contests from `train_before` to before it test.
        max_tests: Tests of a problem, the smallest.
        max_test_chars: Longest test, input and output together.
        comparison: ``lines`` (the reference) or ``numbers`` (LiveCodeBench); see `equal_text`.
        instruction_start: Regular expression for the words that begin the format instruction in
            prompts of the reference implementation, which is replaced by ours; None keeps it.
        sandbox: Runs the programs.

    Raises:
        ConfigError: Settings that cannot work.
    """

    train_path: str | None = None
    test_path: str | None = None
    hub_id: str | None = None
    train_before: str = "2025-02-01"
    test_before: str = "2025-05-01"
    max_tests: int = MAX_TESTS
    max_test_chars: int = 8192
    comparison: str = "lines"
    instruction_start: str | None = None
    sandbox: Sandbox = field(default_factory=Sandbox)

    objectives = tuple(Objective(f"tc_{i}", f"passing test {i + 1}") for i in range(MAX_TESTS))
    answer_format = FencedPrograms()
    drops_unparsed = True
    pads_answers = False
    may_block = False  # programs run in the sandbox, which has deadlines of its own

    def __post_init__(self) -> None:
        """Checks the settings."""
        check_settings(self)
        days = {}
        for name in ("train_before", "test_before"):
            try:
                days[name] = parse_day(getattr(self, name))
            except ValueError as error:
                value = getattr(self, name)
                raise ConfigError(
                    f"task.{name}={value!r}: expected a day like 2025-02-01"
                ) from error
        if self.comparison not in COMPARISONS:
            raise ConfigError(f"task.comparison={self.comparison!r}: expected one of {COMPARISONS}")
        for name in ("max_tests", "max_test_chars"):
            if getattr(self, name) < 1:
                raise ConfigError(f"task.{name}={getattr(self, name)}: expected 1 or more")
        self._selection = Selection(
            most_tests=self.max_tests, most_characters=self.max_test_chars, **days
        )
        default = None if self.hub_id is not None else str(PROBLEMS)
        paths = (self.train_path or default, self.test_path or default)
        hub_splits = {"train": "test", "test": "test"}
        self._source = Source(PROBLEMS.parent, *paths, self.hub_id, hub_splits)
        self._loaded: dict[str, LazyRows[Any]] = {}
        self._last: tuple[str, list[Outcome]] = ("", [])

    @override
    def rows(self, split: str) -> Sequence[PromptRow]:
        """The problems of a split."""
        if split not in self._loaded:
            made: dict[int, PromptRow] = {}  # a few tests each; decoding them again takes long

            def make(record: Fields, number: int) -> PromptRow:
                if number not in made:
                    made[number] = self._row(record, f"{split}-{number}", split)
                return made[number]

            self._loaded[split] = load_rows(self._source.records(split), make)
        return self._loaded[split]

    @override
    def score(self, answer: str, row: PromptRow) -> list[float]:
        """1 for every test that the program passes."""
        truth = row.ground_truth
        function = truth["fn_name"] if truth["testtype"] == "functional" else None
        outcomes = self.sandbox.run_tests(answer, truth["inputs"], function)
        self._last = (answer, outcomes)
        return self._compare(outcomes, row)

    @override
    def explain(self, answer: str, row: PromptRow) -> str:
        """How many tests passed, and how the first failed ones ended."""
        scored, outcomes = self._last
        outputs = row.ground_truth["outputs"]
        if scored != answer or len(outcomes) != len(outputs):
            return ""  # it has not just been scored, and running it again would take too long
        rewards = self._compare(outcomes, row)
        failed = [i for i, reward in enumerate(rewards) if not reward]
        told = "; ".join(
            f"test {i + 1}: "
            + (
                f"wrote {quoted(outcomes[i].stdout.decode(errors='replace'))}, "
                f"wanted {quoted(outputs[i])}"
                if outcomes[i].status == "ok"
                else _ENDINGS[outcomes[i].status]
            )
            for i in failed[:_TOLD]
        )
        return f"{len(outputs) - len(failed)} of {len(outputs)} tests passed; {told}".rstrip("; ")

    @override
    def duplicate_key(self, answer: str, rewards: Sequence[float]) -> Hashable:
        """The program's syntax tree, which ignores layout and comments."""
        (outcome,) = self.sandbox.run_tests(_SYNTAX_TREE, [answer])
        if outcome.status == "ok":
            return "tree", hashlib.sha256(outcome.stdout).digest()
        return "text", " ".join(answer.lower().split())

    @override
    def set_scalar(self, matrix: Sequence[Sequence[float]], row: PromptRow) -> float:
        """The sum of all entries, as published (not of the rows' means)."""
        return float(sum(map(sum, matrix)))

    @override
    def goal_scalar(
        self, rewards: Sequence[float], weights: Sequence[float], row: PromptRow
    ) -> float:
        """``sum_i w_i r_i``; there are always 16 weights, and those beyond a row's K are not used.

        Raises:
            ConfigError: Another number of weights.
        """
        if len(weights) != MAX_TESTS:
            raise ConfigError(
                f"{len(weights)} weights for {row.id}; expected {MAX_TESTS}, whatever the number "
                f"of tests: those beyond the row's own are not used"
            )
        return sum(w * r for w, r in zip(weights, rewards, strict=False))

    @override
    def picture(
        self, row: PromptRow, answers: Sequence[str], rewards: Sequence[Sequence[float]]
    ) -> Element:
        """Which program passes which test."""
        return passing_table(row, answers, rewards)

    @override
    def demonstrate(self, row: PromptRow, rng: Random) -> str:
        """A program that is right for one test, see `demonstrations`."""
        return demonstration(row.ground_truth, rng)

    @override
    def row_from_ground_truth(self, row_id: str, ground_truth: Mapping[str, Any]) -> PromptRow:
        """A row without a question, from testtype, fn_name, inputs and outputs."""
        return truth_row(row_id, Fields(ground_truth, row_id, "ground_truth"))

    @override
    def row_from_record(self, row_id: str, record: Mapping[str, Any]) -> PromptRow:
        """The row of one record in either schema, whatever its date."""
        return self._row(Fields(record, row_id), row_id, split=None)

    @override
    def counters(self) -> Mapping[str, int]:
        """Tests that were stopped at a deadline, and tests that the sandbox failed to run."""
        counts = self.sandbox.counts
        found = {"timed_out_tests": counts["timeout"], "lost_tests": counts["lost"]}
        return {name: count for name, count in found.items() if count}

    @override
    def check(self) -> None:
        """Reads the files and tries to get out of the sandbox."""
        self._source.check(self)
        self.sandbox.check()

    def _compare(self, outcomes: Sequence[Outcome], row: PromptRow) -> list[float]:
        is_functional = row.ground_truth["testtype"] == "functional"
        rewards: list[float] = []
        for outcome, expected in zip(outcomes, row.ground_truth["outputs"], strict=True):
            written = outcome.stdout.decode(errors="replace")
            if outcome.status != "ok":
                rewards.append(0.0)
            elif is_functional:
                rewards.append(float(equal_value(written, expected)))
            else:
                rewards.append(float(equal_text(written, expected, self.comparison)))
        return rewards

    def _row(self, record: Fields, row_id: str, split: str | None) -> PromptRow:
        if is_chat_row(record):
            row = read_chat_row(record, ("livecodebench",))
            return chat_row(row_id, row, record, self.instruction_start)
        return problem_row(record, self._selection, split)
