"""Text as the public reference implementation compares it: normalisation, F1 of words and of sets.

The values follow SQuAD's evaluation (Rajpurkar et al., arXiv:1606.05250, section 4.3), with the
order of the steps that the reference has.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Collection, Hashable, Iterable

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_text(
    value: object, *, drop_articles: bool = False, split_underscores: bool = False
) -> str:
    """The text in lower case, without ASCII punctuation, with single spaces.

    In this order: ``_`` becomes a space (on request), lower case, the words a, an, the are dropped
    (on request), punctuation is deleted without leaving a space, spaces are collapsed. Accents
    stay. A value that is no string is written as Python writes it; None is the empty text.
    """
    text = "" if value is None else str(value)
    if split_underscores:
        text = text.replace("_", " ")
    text = text.lower()
    if drop_articles:
        text = _ARTICLES.sub(" ", text)
    return " ".join(text.translate(_WITHOUT_PUNCTUATION).split())


def quoted(value: object, most: int = 60) -> str:
    """The value as Python writes it, in one line of at most `most` characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def word_f1(predicted: object, gold: object, *, drop_articles: bool = False) -> float:
    """Multiset F1 of the words of two normalised texts; 1 if both are empty."""
    return multiset_f1(
        normalize_text(predicted, drop_articles=drop_articles).split(),
        normalize_text(gold, drop_articles=drop_articles).split(),
    )


def multiset_f1(predicted: Iterable[Hashable], gold: Iterable[Hashable]) -> float:
    """F1 of two collections, repetitions counted: 2 |P n G| / (|P| + |G|), 1 if both are empty."""
    left, right = Counter(predicted), Counter(gold)
    if not left and not right:
        return 1.0
    return 2 * (left & right).total() / (left.total() + right.total())


def set_f1(predicted: Collection[Hashable], gold: Collection[Hashable]) -> float:
    """F1 of two collections, repetitions ignored; 1 if both are empty."""
    return multiset_f1(set(predicted), set(gold))
