"""What vpo-score says about each line of completions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from vpo_lightning.errors import ConfigError
from vpo_lightning.prompting import MultiAnswer, PromptStyle, SingleAnswer
from vpo_lightning.scorer import Scorer
from vpo_lightning.scoring import ScoredAnswer, ScoredCompletion
from vpo_lightning.task import PromptRow, Task
from vpo_lightning.verdict import ScoringError

_AT_A_TIME = 256  # lines whose answers are scored together


def score_lines(
    task: Task,
    lines: Iterable[bytes | str],
    *,
    deduplicate: bool = True,
    scorer: Scorer | None = None,
) -> Iterator[dict[str, Any]]:
    """One record for each line, in order: that of `score_record`, or one that says what is wrong.

    A line that cannot be scored gets ``rewards``, ``scalar`` and ``num_parsed`` null.

    Args:
        task: The task.
        lines: JSON objects.
        deduplicate: See `score_record`.
        scorer: Scores answers, and says what a failure is worth; by default in this process, where
            it is worth nothing: its line cannot be scored.
    """
    scorer = scorer or Scorer(task)
    numbered = enumerate(lines, start=1)
    while part := list(islice(numbered, _AT_A_TIME)):
        requests = [_request(task, line, f"line {number}") for number, line in part]
        chains = [(r.row, r.answers) for r in requests if isinstance(r, _Request)]
        results = iter(scorer.try_to_score(chains, deduplicate=deduplicate))
        for request in requests:
            if isinstance(request, _Request):
                yield _record_of(task, request, next(results))
            else:
                yield request


def score_record(
    task: Task, given: Mapping[str, Any], place: str, *, deduplicate: bool = True
) -> dict[str, Any]:
    """The rewards of one completion.

    Args:
        task: Scores it.
        given: ``text``; ``mode``, single or multi; ``m``, the number of answers (multi);
            ``ground_truth`` (an object, or its JSON) or ``row`` (a record of the data set). With
            ``weights`` in the ground truth the answer is goal-conditioned.
        place: Names the record in errors.
        deduplicate: True: the reward matrix of training (duplicates dropped, later answers moved
            up, zero rows up to m). False: one row for every slot, as in evaluation.

    Returns:
        ``id`` as given; ``rewards``, K numbers for each answer; ``scalar``, what a scalar method
        sees; ``num_parsed``, before duplicates are dropped; ``flags``, for each slot of the chain
        ok, duplicate, unparsed, missing, failed, or not_text; ``error``, None, or which answers
        got a failure value and why; ``explanations`` of each slot, where the scorer asks for them.
        Text that is no string scores zero.

    Raises:
        ConfigError: A field is missing or of no use.
        ScoringError: An answer could not be scored.
    """
    request = _read_request(task, given, place)
    (scored,) = Scorer(task).score([(request.row, request.answers)], deduplicate=deduplicate)
    return _answered(task, request, scored)


@dataclass(frozen=True)
class _Request:
    """A line that can be scored."""

    known: Any
    place: str
    row: PromptRow
    style: PromptStyle
    weights: Sequence[float] | None
    answers: Sequence[str | None]
    is_text: bool


def _request(task: Task, line: bytes | str, place: str) -> _Request | dict[str, Any]:
    """What the line asks for, or the record that says what is wrong with it."""
    given: Any = None
    try:
        given = _parsed(line)
        return _read_request(task, given, place)
    except Exception as error:  # the task may be anyone's; the other lines are still scored
        known = given.get("id") if isinstance(given, Mapping) else None
        return _failure(known, place, error)


def _read_request(task: Task, given: Mapping[str, Any], place: str) -> _Request:
    style = _style(given)
    weights, truth = _ground_truth(given)
    if truth is not None:
        row = task.row_from_ground_truth(place, truth)
    else:
        row = task.row_from_record(place, given["row"])
    if "text" not in given:
        raise ConfigError("field text is missing; expected the completion")
    is_text = isinstance(given["text"], str)
    answers = style.parse(task, given["text"]) if is_text else [None] * style.num_answers
    return _Request(given.get("id"), place, row, style, weights, answers, is_text)


def _record_of(
    task: Task, request: _Request, result: ScoredCompletion | ScoringError
) -> dict[str, Any]:
    """The record of a line after scoring."""
    try:
        if isinstance(result, ScoringError):
            raise result
        return _answered(task, request, result)
    except Exception as error:  # a task may have a `scalar` of its own, too
        return _failure(request.known, request.place, error)


def _answered(task: Task, request: _Request, scored: ScoredCompletion) -> dict[str, Any]:
    answers = scored.answers
    flags = [_flag(answer) for answer in answers] if request.is_text else ["not_text"]
    failed = [f"answer {a.slot + 1}: {a.error}" for a in answers if a.error is not None]
    record = _record(
        request.known,
        scored.matrix,
        _scalar(task, request, scored),
        scored.num_parsed,
        flags,
        f"{request.place}: {'; '.join(failed)}" if failed else None,
    )
    if any(answer.explanation for answer in answers):
        record["explanations"] = [answer.explanation for answer in answers]
    return record


def _failure(known: Any, place: str, error: Exception) -> dict[str, Any]:
    is_ours = isinstance(error, ConfigError | ScoringError)
    reason = " ".join((str(error) if is_ours else repr(error)).split())
    text = reason if reason.startswith(place) else f"{place}: {reason}"
    return _record(known, None, None, None, [], text)


def _record(
    known: Any,
    rewards: Sequence[Sequence[float]] | None,
    scalar: float | None,
    num_parsed: int | None,
    flags: Sequence[str],
    error: str | None,
) -> dict[str, Any]:
    return {
        "id": known,
        "rewards": rewards,
        "scalar": scalar,
        "num_parsed": num_parsed,
        "flags": flags,
        "error": error,
    }


def _parsed(line: bytes | str) -> dict[str, Any]:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not one JSON object ({error})") from error
    if not isinstance(given, dict):
        raise ConfigError(f"expected a JSON object, got {type(given).__name__}")
    return given


def _style(given: Mapping[str, Any]) -> PromptStyle:
    mode, m = given.get("mode"), given.get("m")
    if mode not in ("single", "multi"):
        raise ConfigError(f"field mode is {mode!r}; expected single or multi")
    if mode == "single":
        return SingleAnswer()
    if isinstance(m, bool) or not isinstance(m, int) or m < 1:
        raise ConfigError(f"field m is {m!r}; expected a whole number, 1 or more, for mode multi")
    return MultiAnswer(m)


def _ground_truth(
    given: Mapping[str, Any],
) -> tuple[Sequence[float] | None, Mapping[str, Any] | None]:
    """The goal's weights, if there are any, and the ground truth, None if a row is given."""
    truth = given.get("ground_truth")
    if truth is None:
        if not isinstance(given.get("row"), Mapping):
            raise ConfigError("neither field ground_truth nor field row holds an object")
        return None, None
    if isinstance(truth, str):
        try:
            truth = json.loads(truth)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"field ground_truth is no JSON ({error})") from error
    if not isinstance(truth, Mapping):
        raise ConfigError(f"field ground_truth is {type(truth).__name__}; expected an object")
    weights = truth.get("weights")
    if weights is not None and not _are_numbers(weights):
        raise ConfigError("field ground_truth.weights is no list of numbers")
    return weights, {key: value for key, value in truth.items() if key != "weights"}


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(v, int | float) and not isinstance(v, bool) for v in value
    )


def _scalar(task: Task, request: _Request, scored: ScoredCompletion) -> float:
    row, weights = request.row, request.weights
    if isinstance(request.style, MultiAnswer):
        if weights is not None:
            raise ConfigError("field ground_truth.weights is for one answer; expected mode single")
        return task.set_scalar(scored.matrix, row)
    if weights is not None:
        return task.goal_scalar(scored.matrix[0], weights, row)
    return task.scalar(scored.matrix[0], row)


def _flag(answer: ScoredAnswer) -> str:
    if answer.text is None:
        return "missing"
    if answer.error is not None:
        return "failed"
    if not answer.is_parsed:
        return "unparsed"
    return "duplicate" if answer.is_duplicate else "ok"
