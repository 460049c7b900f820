"""Whether what a program wrote is what it should have written."""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation

COMPARISONS = ("lines", "numbers")


def equal_text(written: str, expected: str, comparison: str = "lines") -> bool:
    """Whether two outputs agree.

    ``lines``, the rule of the public reference implementation: the same lines once white space at
    their right ends and blank lines at the end are gone. ``numbers``, the rule of LiveCodeBench
    itself: white space at both ends of the lines is dropped, and two lines of numbers also agree if
    the numbers are equal as decimals, one by one (``1.0`` and ``1``).
    """
    if comparison == "lines":
        return _lines(written) == _lines(expected)
    given, wanted = _lines(written.strip()), _lines(expected.strip())
    return len(given) == len(wanted) and all(map(_equal_line, given, wanted))


def equal_value(written: str, expected: str) -> bool:
    """Whether two JSON texts hold equal values, in the sense of Python: ``1 == 1.0 == true``.

    The empty text, of a function that did not return, equals nothing.
    """
    try:
        return bool(json.loads(written) == json.loads(expected))
    except (ValueError, RecursionError):
        return False


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _equal_line(one: str, other: str) -> bool:
    one, other = one.strip(), other.strip()
    if one == other:
        return True
    if len(one.split()) != len(other.split()):
        return False
    numbers = _decimals(one), _decimals(other)
    return numbers[0] is not None and numbers[0] == numbers[1]


def _decimals(line: str) -> list[Decimal] | None:
    try:
        numbers = [Decimal(word) for word in line.split()]
    except InvalidOperation:
        return None
    return None if any(number.is_snan() for number in numbers) else numbers  # compares with none
