"""The evaluator that OpenEvolve loads from this file: it has a program scored by the search."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path


def evaluate(program_path: str, url: str) -> dict[str, float]:
    """The metrics of the program in a file: one for each objective, and ``combined_score``.

    Args:
        program_path: The file.
        url: Where the search answers.
    """
    request = urllib.request.Request(f"{url}/score", Path(program_path).read_bytes())
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["metrics"]
