"""vpo-score: the rewards of given completions, to check a reward or to use it elsewhere."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from omegaconf import DictConfig

from vpo_lightning import build, entry
from vpo_lightning.config_errors import group_options
from vpo_lightning.errors import ConfigError
from vpo_lightning.score_lines import score_lines

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
    task.check()
    scorer = build.build_scorer(cfg, task)
    outcomes: Counter[str] = Counter()
    with _lines(str(cfg.input)) as lines, _whole_file(str(cfg.output)) as output:
        for record in score_lines(task, lines, deduplicate=cfg.dedup, scorer=scorer):
            outcomes["failed" if record["error"] else "scored"] += 1
            output.write(json.dumps(record) + "\n")
        if not outcomes:
            raise ConfigError(f"input={cfg.input}: it holds no lines")
    counters = {**outcomes, **scorer.counters()}
    scorer.close()
    print(", ".join(f"{name}: {n}" for name, n in counters.items() if n), file=sys.stderr)
    return SOME_FAILED_STATUS if outcomes["failed"] else 0


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
