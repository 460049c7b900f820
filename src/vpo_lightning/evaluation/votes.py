"""Majority voting: what the answer that most of k answers agree on is worth."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

Polynomial = list[list[int]]
"""Coefficients by number of answers drawn and number of ties with the winner."""


def majority_at_k(votes: Sequence[str | None], scores: Sequence[float], k: int) -> float:
    """The expected score of the majority's answer among k answers drawn without replacement.

    Of the answers drawn, the vote with the most of them wins, a tie is broken at random; its score
    is that of one of its answers. Answers without a vote do not count; if no drawn answer has one
    the score is 0. Exact: the draws in which a vote wins with t answers, j others tying, are
    counted by a product of polynomials over the other votes.

    Args:
        votes: What each answer votes for, None for nothing.
        scores: Of the answers.
        k: Answers drawn.

    Raises:
        ValueError: k is not in 1..n.
    """
    n = len(votes)
    if not 1 <= k <= n:
        raise ValueError(f"majority@{k} of {n} answers; expected 1 <= k <= {n}")
    counts = Counter(vote for vote in votes if vote is not None)
    blank = n - sum(counts.values())
    sums: Counter[str] = Counter()
    for vote, score in zip(votes, scores, strict=True):
        if vote is not None:
            sums[vote] += score  # type: ignore[assignment]
    total = math.comb(n, k)
    value = 0.0
    for vote, count in counts.items():
        others = [c for other, c in counts.items() if other != vote]
        ways = sum(
            math.comb(count, t) * _ways_to_win(others, blank, t, k - t)
            for t in range(1, min(count, k) + 1)
        )
        value += ways / total * sums[vote] / count
    return value


def _ways_to_win(others: Sequence[int], blank: int, most: int, rest: int) -> float:
    """The ways to draw `rest` further answers with no other vote above `most`, ties shared."""
    table: Polynomial = [[1]] + [[0] for _ in range(rest)]
    for count in others:
        table = _times_one_vote(table, count, most)
    return sum(
        ways / (1 + ties) * math.comb(blank, rest - drawn)
        for drawn, row in enumerate(table)
        for ties, ways in enumerate(row)
    )


def _times_one_vote(table: Polynomial, count: int, most: int) -> Polynomial:
    width = len(table[0]) + 1
    product = [[0] * width for _ in table]
    for drawn, row in enumerate(table):
        for ties, ways in enumerate(row):
            if ways:
                for t in range(min(count, most, len(table) - 1 - drawn) + 1):
                    product[drawn + t][ties + (t == most)] += ways * math.comb(count, t)
    return product
