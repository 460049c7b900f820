"""Prompt rows of LiveCodeBench problems, from either schema."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from vpo_lightning.task import Objective, PromptRow
from vpo_lightning.tasks.chat_rows import ChatRow, question_of
from vpo_lightning.tasks.fields import Fields
from vpo_lightning.tasks.livecodebench.problem_tests import read_tests, smallest_tests
from vpo_lightning.tasks.loading import OtherSplit, SkipRow

MAX_TESTS = 16

_STDIN_PROMPT = """\
{question}

Write a Python program that reads standard input and writes its answer to standard output. It is \
run on {k} tests; each is an objective of its own."""

_FUNCTION_PROMPT = """\
{question}

Write this Python function:
{signature}
It is called on {k} tests; each is an objective of its own."""


@dataclass(frozen=True)
class Selection:
    """Which problems and tests are used.

    Attributes:
        train_before: Problems of contests before this day train.
        test_before: Problems from then to before this day test; later ones are left out.
        most_tests: Tests of a problem, the smallest ones.
        most_characters: Longest test, input and output together.
    """

    train_before: date
    test_before: date
    most_tests: int
    most_characters: int

    def split_of(self, day: date) -> str | None:
        """train, test, or None."""
        if day < self.train_before:
            return "train"
        return "test" if day < self.test_before else None


def problem_row(record: Fields, selection: Selection, split: str | None) -> PromptRow:
    """The row of a problem in the data set's own schema.

    Args:
        record: The stored problem.
        selection: Which problems and tests are used.
        split: Leaves out problems of another split; None takes any.

    Raises:
        SkipRow: The problem belongs to another split, or all its tests are too long.
        ConfigError: A field is missing or malformed.
    """
    if split is not None and selection.split_of(_contest_day(record)) != split:
        raise OtherSplit(f"the contest's date is not one of the split {split}")
    tests = smallest_tests(read_tests(record), selection.most_tests, selection.most_characters)
    if not tests:
        raise SkipRow(f"no test has at most {selection.most_characters} characters")
    truth = Fields(
        {
            "testtype": tests[0].kind,
            "fn_name": _function_name(record) if tests[0].kind == "functional" else "",
            "inputs": [test.input for test in tests],
            "outputs": [test.output for test in tests],
            "is_public": [test.is_public for test in tests],
        },
        record.place,
        "tests",
    )
    row = truth_row(record.text("question_id"), truth)
    question = record.text("question_content").rstrip()
    if tests[0].kind == "stdin":
        prompt = _STDIN_PROMPT.format(question=question, k=len(tests))
    else:
        starter = record.text("starter_code")
        signature = signature_of(starter, row.ground_truth["fn_name"]) or starter.rstrip()
        prompt = _FUNCTION_PROMPT.format(question=question, signature=signature, k=len(tests))
    return PromptRow(row.id, prompt, row.ground_truth, row.objectives)


def chat_row(row_id: str, row: ChatRow, record: Fields, instruction_start: str | None) -> PromptRow:
    """The row of a record that was written for the public reference implementation."""
    scored = truth_row(row_id, row.truth_fields(record))
    question = row.user
    if instruction_start is not None:
        question = question_of(row, record, instruction_start)
    return PromptRow(row_id, question, scored.ground_truth, scored.objectives, row.system)


def truth_row(row_id: str, truth: Fields) -> PromptRow:
    """A row without a question, from testtype, fn_name, inputs and outputs.

    Raises:
        ConfigError: A field is missing or malformed.
    """
    kind, function = truth.text("testtype"), ""
    inputs, outputs = truth.texts("inputs"), truth.texts("outputs")
    if kind not in ("stdin", "functional"):
        raise truth.error("testtype", f"is {kind!r}; expected stdin or functional")
    if not inputs or len(inputs) != len(outputs):
        raise truth.error("outputs", f"has {len(outputs)} entries for {len(inputs)} inputs")
    if kind == "functional":
        function = truth.text("fn_name")
        if not function.isidentifier():
            raise truth.error("fn_name", f"is {function!r}; expected the name of a function")
        for text in outputs:
            _check_json(truth, text)
    public = truth.values.get("is_public") or [None] * len(inputs)
    content = {"testtype": kind, "fn_name": function, "inputs": inputs, "outputs": outputs}
    return PromptRow(row_id, "", content, _objectives(public))


def signature_of(starter_code: str, function: str) -> str | None:
    """The ``def`` line of a function in the starter code, without ``self``; None if not there."""
    match = re.search(
        rf"def {re.escape(function)}\s*\((.*?)\)\s*(->.*?)?:", starter_code, re.DOTALL
    )
    if match is None:
        return None
    arguments = re.sub(r"^\s*self\s*,?\s*", "", match.group(1)).strip()
    returned = f" {match.group(2).strip()}" if match.group(2) else ""
    return f"def {function}({arguments}){returned}:"


def parse_day(value: Any) -> date:
    """The day of a date in ISO form, a datetime or a date; raises ValueError for anything else."""
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, date):
        return value
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no date")
    return datetime.fromisoformat(value).date()


def _contest_day(record: Fields) -> date:
    try:
        return parse_day(record.values.get("contest_date"))
    except ValueError as error:
        raise record.error("contest_date", f"cannot be read ({error})") from error


def _function_name(record: Fields) -> str:
    stored = record.values.get("metadata")
    if isinstance(stored, str):
        try:
            stored = json.loads(stored)
        except ValueError as error:
            raise record.error("metadata", f"is not JSON ({error})") from error
    return Fields({"metadata": stored}, record.place).inner("metadata").text("func_name")


def _check_json(truth: Fields, text: str) -> None:
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        shown = text if len(text) <= 60 else f"{text[:57]}..."
        raise truth.error("outputs", f"holds {shown!r}, which is not JSON ({error})") from error


def _objectives(public: Sequence[bool | None]) -> tuple[Objective, ...]:
    notes = {True: " (an example of the statement)", False: " (hidden)", None: ""}
    return tuple(
        Objective(f"tc_{i}", f"passing test {i + 1}{notes[is_public]}")
        for i, is_public in enumerate(public)
    )
