"""The process that judges answers for a `ScoringPool`; it reads them from its standard input."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from multiprocessing.connection import Connection

from omegaconf import OmegaConf

from vpo_lightning import build
from vpo_lightning.launch import die_with_parent
from vpo_lightning.task import Task
from vpo_lightning.verdict import Verdict, failed_verdict, try_to_judge


def main() -> None:
    """Makes the task it is told, says so, and answers until the other end closes."""
    die_with_parent()
    control = Connection(os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)  # what a task prints is for people, and standard output may be a file of records
    try:
        start = control.recv()
        task = build.build_task(OmegaConf.create({"task": start["task"]}))
    except EOFError:
        return
    except Exception as error:  # whatever a user's constructor raises
        control.send(" ".join(f"cannot make the task: {error!r}".split()))
        return
    control.send("")
    while True:
        try:
            verdict = _judge(control, task, explain=start["explain"])
        except (EOFError, OSError):
            return
        try:
            control.send((verdict, dict(task.counters())))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            control.send((failed_verdict(f"its duplicate key cannot be sent: {error}"), {}))


def _judge(control: Connection, task: Task, *, explain: bool) -> Verdict:
    message = control.recv_bytes()
    try:
        row, text = pickle.loads(message)
    except Exception as error:  # a row of a class that cannot be found here
        return failed_verdict(f"its row cannot be read in another process: {error!r}")
    return replace(try_to_judge(task, row, text, explain=explain), cause=None)
