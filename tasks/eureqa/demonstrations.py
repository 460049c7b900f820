"""Answers to learn the format from: some of the names, others in the wrong place."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

_RIGHT = 0.6  # share of right names


def demonstration(letters: str, names: Sequence[str], rng: Random) -> str:
    """An imperfect list of names, one tag for each letter."""
    given = [name if rng.random() < _RIGHT else rng.choice(names) for name in names]
    tags = zip(letters, given, strict=False)
    return "\n".join(f"<entity_{letter}>{name}</entity_{letter}>" for letter, name in tags)
