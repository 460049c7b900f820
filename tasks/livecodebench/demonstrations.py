"""Programs to learn the format from: each writes what one of the tests wants, whatever the input.

The data hold no solutions. Such a program passes that test and teaches how programs are delimited,
nothing about solving problems.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from typing import Any


def demonstration(truth: Mapping[str, Any], rng: Random) -> str:
    """A program that is right for one test."""
    output = rng.choice(truth["outputs"])
    if truth["testtype"] == "functional":
        return f"def {truth['fn_name']}(*values):\n    return {json.loads(output)!r}"
    return f"print({output.rstrip()!r})"
