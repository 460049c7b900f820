"""vpo-score: the rewards of given completions, to check a reward or to use it elsewhere."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from omegaconf import DictConfig

from vpo_lightning import build, entry
from vpo_lightning.config_errors import group_options
from vpo_lightning.errors import ConfigError
from vpo_lightning.prompting import MultiAnswer, PromptStyle, SingleAnswer
from vpo_lightning.scoring import ScoredAnswer, ScoredCompletion, score_answers
from vpo_lightning.task import PromptRow, Task

SOME_FAILED_STATUS = 3


def main() -> None:
    """The command vpo-score: exit status 0, 3 if some lines failed, 2 if nothing could run."""
    sys.exit(entry.run(score, "score"))


def score(cfg: DictConfig) -> int:
    """The exit status after scoring the lines of `cfg.input` into `cfg.output`.

    Raises:
        ConfigError: A setting or file with which nothing can run; no output is written then.
    """
    if "task" not in cfg:
        raise ConfigError(f"task: choose one of {', '.join(group_options('task'))}")
    if not isinstance(cfg.dedup, bool):
        raise ConfigError(f"dedup={cfg.dedup!r}: expected true or false")
    task = build.build_task(cfg)
    outcomes: Counter[str] = Counter()
    with _lines(str(cfg.input)) as lines, _whole_file(str(cfg.output)) as output:
        for record in score_lines(task, lines, deduplicate=cfg.dedup):
            outcomes["failed" if record["error"] else "scored"] += 1
            output.write(json.dumps(record) + "\n")
        if not outcomes:
            raise ConfigError(f"input={cfg.input}: it holds no lines")
    counters = {**outcomes, **task.counters()}
    print(", ".join(f"{name}: {n}" for name, n in counters.items()), file=sys.stderr)
    return SOME_FAILED_STATUS if outcomes["failed"] else 0


def score_lines(
    task: Task, lines: Iterable[bytes | str], *, deduplicate: bool = True
) -> Iterator[dict[str, Any]]:
    """One record for each line, in order: that of `score_record`, or one that says what is wrong.

    A line that cannot be scored gets ``rewards``, ``scalar`` and ``num_parsed`` null.
    """
    for number, line in enumerate(lines, start=1):
        place = f"line {number}"
        given: Any = None
        try:
            given = _parsed(line)
            yield score_record(task, given, place, deduplicate=deduplicate)
        except Exception as error:  # the task may be anyone's; the other lines are still scored
            known = given.get("id") if isinstance(given, Mapping) else None
            reason = str(error) if isinstance(error, ConfigError) else repr(error)
            reason = " ".join(reason.split())
            text = reason if reason.startswith(place) else f"{place}: {reason}"
            yield _record(known, None, None, None, [], text)


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
        ok, duplicate, unparsed, missing, or not_text; ``error``, None. Text that is no string
        scores zero.

    Raises:
        ConfigError: A field is missing or of no use.
    """
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
    scored = score_answers(task, row, answers, deduplicate=deduplicate)
    scalar = _scalar(task, row, scored, style, weights)
    flags = [_flag(answer) for answer in scored.answers] if is_text else ["not_text"]
    return _record(given.get("id"), scored.matrix, scalar, scored.num_parsed, flags, None)


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


def _scalar(
    task: Task,
    row: PromptRow,
    scored: ScoredCompletion,
    style: PromptStyle,
    weights: Sequence[float] | None,
) -> float:
    if isinstance(style, MultiAnswer):
        if weights is not None:
            raise ConfigError("field ground_truth.weights is for one answer; expected mode single")
        return task.set_scalar(scored.matrix, row)
    if weights is not None:
        return task.goal_scalar(scored.matrix[0], weights, row)
    return task.scalar(scored.matrix[0], row)


def _flag(answer: ScoredAnswer) -> str:
    if answer.text is None:
        return "missing"
    if not answer.is_parsed:
        return "unparsed"
    return "duplicate" if answer.is_duplicate else "ok"


@contextmanager
def _lines(path: str) -> Iterator[Iterable[bytes]]:
    if path == "-":
        yield sys.stdin.buffer
        return
    try:
        file = Path(path).expanduser().open("rb")
    except OSError as error:
        raise ConfigError(f"input={path}: cannot be read ({error.strerror})") from error
    with file:
        yield file


@contextmanager
def _whole_file(path: str) -> Iterator[IO[str]]:
    """A file that appears under its name when it is complete, and not at all after an error."""
    if path == "-":
        yield sys.stdout
        return
    target = Path(path).expanduser()
    is_device = target.exists() and not target.is_file()  # /dev/null must not be replaced
    part = target if is_device else target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            yield file
        if not is_device:
            os.replace(part, target)
    except OSError as error:
        raise ConfigError(f"output={path}: cannot be written ({error.strerror})") from error
    finally:
        if not is_device:
            with suppress(OSError):
                part.unlink()


if __name__ == "__main__":
    main()
