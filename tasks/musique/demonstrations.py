"""Answers to learn the format from: some of the citations, and the answer or a part of it."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

_KEPT, _STRAY, _RIGHT = 0.8, 0.3, 0.7  # shares: cited steps, wrong citations, right answers
_MOST_PARAGRAPHS = 20  # in the published questions


def demonstration(truth: Mapping[str, Any], rng: Random) -> str:
    """An imperfect cited answer."""
    cited = [index for index in truth["supporting_indices_ordered"] if rng.random() < _KEPT]
    if rng.random() < _STRAY or not cited:
        cited.append(rng.randrange(_MOST_PARAGRAPHS))
    words = str(rng.choice([truth["answer"], *truth["answer_aliases"]])).split()
    kept = words if rng.random() < _RIGHT else words[: max(1, len(words) // 2)]
    support = ", ".join(map(str, cited))
    return f"<support>{support}</support>\n<answer>{' '.join(kept)}</answer>"
