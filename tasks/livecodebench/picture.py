"""Which of a chain's programs pass which tests, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from vpo_lightning.picture import Element, draw
from vpo_lightning.task import PromptRow

_SHOWN = 80  # characters of a test's input


def passing_table(
    row: PromptRow, answers: Sequence[str], rewards: Sequence[Sequence[float]]
) -> Element:
    """One row for each test, one column for each program, and a last column: passed by any.

    Args:
        row: A row of `LiveCodeBenchTask`.
        answers: The programs by slot; an empty text is a missing one.
        rewards: 1 for each test a program passes.
    """
    inputs = row.ground_truth.get("inputs", [])
    tests = range(len(row.objectives))
    slots = range(len(answers))
    titles = [*(f"program {slot + 1}" for slot in slots), "any"]
    head = [draw("th", title, scope="col") for title in ("test", "input", *titles)]
    totals = [_total([rewards[slot][t] >= 1 for t in tests]) for slot in slots]
    totals.append(_total([any(rewards[slot][t] >= 1 for slot in slots) for t in tests]))
    body = [_row(t, str(inputs[t]) if t < len(inputs) else "", rewards) for t in tests]
    foot = [draw("th", "passed", scope="row"), draw("td"), *(draw("td", text) for text in totals)]
    return draw(
        "table",
        draw("caption", f"Tests passed by {len(answers)} programs"),
        draw("thead", draw("tr", *head)),
        draw("tbody", *body, draw("tr", *foot, class_="total")),
    )


def _row(test: int, text: str, rewards: Sequence[Sequence[float]]) -> Element:
    passed = [reward[test] >= 1 for reward in rewards]
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return draw(
        "tr",
        draw("th", str(test + 1), scope="row"),
        draw("td", draw("code", shown)),
        *(_cell(is_passed) for is_passed in [*passed, any(passed)]),
    )


def _cell(is_passed: bool) -> Element:
    return draw(
        "td", "✓ passed" if is_passed else "✗ failed", class_="good" if is_passed else "bad"
    )


def _total(passed: Sequence[bool]) -> str:
    return f"{sum(passed)} of {len(passed)}"
