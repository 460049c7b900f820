"""Ratings of a completion under four aspects, and the reward vector that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vpo_lightning.tasks.fields import Fields

ASPECTS = ("instruction_following", "honesty", "truthfulness", "helpfulness")
LOWEST, HIGHEST = 1, 5

_MISSING = "N/A"


@dataclass(frozen=True)
class RatedCompletion:
    """A completion and its ratings, one for each of `ASPECTS`, from 1 to 5."""

    text: str
    ratings: tuple[float, ...]


def reward_vector(ratings: Sequence[float]) -> list[float]:
    """``(r - 1) / 4`` for each rating r from 1 to 5."""
    return [(rating - LOWEST) / (HIGHEST - LOWEST) for rating in ratings]


def read_completions(record: Fields) -> tuple[list[RatedCompletion], int]:
    """The completions with all four ratings, and how many others there are.

    A completion without annotations, or with a rating "N/A", is one of the others.

    Raises:
        ConfigError: A field is missing, or a rating is neither "N/A" nor from 1 to 5.
    """
    rated: list[RatedCompletion] = []
    completions = record.objects("completions")
    for completion in completions:
        if "annotations" not in completion.values:
            raise completion.error("annotations", "is missing; expected an object, or null")
        ratings = _ratings(completion.inner("annotations")) if completion.has("annotations") else []
        if None not in ratings and ratings:
            text = completion.text("response")
            rated.append(RatedCompletion(text, tuple(r for r in ratings if r is not None)))
    return rated, len(completions) - len(rated)


def _ratings(annotations: Fields) -> list[float | None]:
    return [_rating(annotations, aspect) for aspect in ASPECTS]


def _rating(annotations: Fields, aspect: str) -> float | None:
    """The rating of an aspect; None for "N/A". The aspect holds an object, or a list of one."""
    value: Any = annotations.values.get(aspect)
    if isinstance(value, list) and len(value) == 1:
        annotation = annotations.objects(aspect)[0]
    else:
        annotation = annotations.inner(aspect)
    rating = annotation.values.get("Rating")
    if rating == _MISSING:
        return None
    return checked_rating(rating, annotation, "Rating")


def checked_rating(rating: object, fields: Fields, name: str) -> float:
    """A rating from 1 to 5, given as a number or as text; raises ConfigError otherwise."""
    try:
        number = float(rating) if isinstance(rating, str | int | float) else LOWEST - 1
    except ValueError:
        number = LOWEST - 1
    if isinstance(rating, bool) or not LOWEST <= number <= HIGHEST:
        raise fields.error(
            name, f"is {rating!r}; expected a rating from {LOWEST} to {HIGHEST}, or {_MISSING!r}"
        )
    return float(number)


def read_rating_table(fields: Fields) -> list[list[float]]:
    """The field ``ratings``: for each listed completion four numbers, in the order of `ASPECTS`."""
    table: object = fields.values.get("ratings")
    if not isinstance(table, list) or not table:
        raise fields.error("ratings", "is no list; expected four ratings for each completion")
    rows: list[list[float]] = []
    for i, ratings in enumerate(table):
        if not isinstance(ratings, list) or len(ratings) != len(ASPECTS):
            raise fields.error(f"ratings[{i}]", f"is {ratings!r}; expected {len(ASPECTS)} ratings")
        rows.append([checked_rating(rating, fields, f"ratings[{i}]") for rating in ratings])
    return rows
