"""How different the texts of answers are: distinct ones, and edit distance."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations

MAX_PAIRS = 32
"""Pairs of answers whose edit distance is computed; more are sampled."""


def normalised(text: str) -> str:
    """The text in lower case with single spaces."""
    return " ".join(text.casefold().split())


def distinct_fraction(keys: Sequence[str | None]) -> float:
    """The number of distinct keys over the number of answers; missing ones add nothing."""
    return len({key for key in keys if key is not None}) / len(keys) if keys else 0.0


def edit_diversity(texts: Sequence[str], seed: int = 0, max_pairs: int = MAX_PAIRS) -> float:
    """The mean edit distance of two answers, as a fraction of the longer one; 0 for n < 2.

    Over all pairs, or `max_pairs` of them drawn without replacement.
    """
    pairs = list(combinations(range(len(texts)), 2))
    if len(pairs) > max_pairs:
        pairs = random.Random(seed).sample(pairs, max_pairs)
    distances = [
        edit_distance(texts[i], texts[j]) / max(len(texts[i]), len(texts[j]))
        for i, j in pairs
        if texts[i] != texts[j]
    ]
    return sum(distances) / len(pairs) if pairs else 0.0


def edit_distance(first: str, second: str) -> int:
    """The Levenshtein distance in characters.

    Bit-parallel (Myers 1999, in the form of Hyyrö 2003): one column of the table is two integers of
    as many bits as `first` has characters, the steps up and down from one row to the next.
    """
    if not first or not second:
        return len(first) + len(second)
    places: dict[str, int] = {}
    for i, character in enumerate(first):
        places[character] = places.get(character, 0) | 1 << i
    last = 1 << (len(first) - 1)
    every = (1 << len(first)) - 1
    up, down, distance = every, 0, len(first)
    for character in second:
        match = places.get(character, 0)
        diagonal = (((match & up) + up) ^ up) | match | down
        rises = down | (every & ~(diagonal | up))
        falls = up & diagonal
        distance += bool(rises & last) - bool(falls & last)
        rises = rises << 1 | 1
        up = every & (falls << 1 | ~(diagonal | rises))
        down = every & rises & diagonal
    return distance
