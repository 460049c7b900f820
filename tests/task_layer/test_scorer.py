"""Scoring that hangs, crashes or returns nonsense neither stops nor poisons anything."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from tests.sandbox.processes import descendants, wait_until
from tests.task_layer.bad_task import FAULTS, RESULTS, BadTask
from vpo_lightning.errors import ConfigError
from vpo_lightning.scorer import Scorer, ScoringSettings
from vpo_lightning.scoring_pool import ScoringPool
from vpo_lightning.task import PromptRow
from vpo_lightning.verdict import ScoringError

CONFIG = {"_target_": "tests.task_layer.bad_task.BadTask"}
TASK = BadTask()
ROW = TASK.rows("train")[0]
HANGS = ("spin", "refuse to end", "sleep", "never match", "leave a child")
DEADLINE = 0.7
FINE = {"good": [1.0, 0.5], "unexplained": [1.0, 0.5], "numbers of another kind": [1.0, 0.0]}
ENDS_THE_PROCESS = ("segfault", "exit", "abort", "close everything")


def scorer(**settings: Any) -> Scorer:
    """A scorer as a run has it; with workers it scores in processes."""
    made = ScoringSettings(**{"failure_value": 0.25, "deadline": DEADLINE, **settings})
    workers = made.num_workers(TASK)
    pool = ScoringPool(CONFIG, workers, made.deadline, explain=made.explain) if workers else None
    return Scorer(TASK, made, pool)


@pytest.fixture(scope="module")
def pooled():
    """Two processes that score."""
    made = scorer(workers=2, explain=True)
    yield made
    made.close()


def matrices(made: Scorer, *words: str) -> list[list[list[float]]]:
    return [scored.matrix for scored in made.score([(ROW, [word]) for word in words])]


@pytest.mark.parametrize("word", [*FAULTS, *RESULTS, "unhashable", "not to be sent"])
def test_every_fault_is_a_declared_value_and_a_count(pooled: Scorer, word: str) -> None:
    pooled.score([(ROW, ["good"] * 4)])  # what was killed before has started again
    before = dict(pooled.failures)
    start = time.monotonic()
    scored = pooled.score([(ROW, ["good", word]), (ROW, [word])])
    assert time.monotonic() - start < DEADLINE + 2
    failed = word not in FINE and word != "print"
    rewards = FINE.get(word, [1.0, 0.5] if word == "print" else [0.25, 0.25])
    assert scored[1].matrix == [rewards]
    assert scored[0].answers[1].rewards == rewards
    assert scored[0].matrix[0] == [1.0, 0.5]
    assert (scored[1].answers[0].error is not None) == failed
    late = 2 * (word in HANGS)
    counts = {"score_failures": 2 * failed, "score_timeouts": late}
    assert {k: pooled.failures[k] - before.get(k, 0) for k in counts} == counts
    assert pooled.counters()["score_failures"] == pooled.failures["score_failures"]


@pytest.mark.parametrize("word", [w for w in (*FAULTS, *RESULTS) if w not in HANGS])
def test_in_the_training_process_the_same_faults_have_the_same_value(word: str) -> None:
    if word in (*ENDS_THE_PROCESS, "not to be sent"):
        return  # what processes are for
    (completion,) = scorer().score([(ROW, [word])])
    expected = FINE.get(word, [1.0, 0.5] if word == "print" else [0.25, 0.25])
    assert completion.matrix == [expected]


def test_without_a_failure_value_a_fault_is_raised_with_its_cause() -> None:
    strict = Scorer(TASK)
    with pytest.raises(ScoringError, match=r"IndexError: .*bad_task.py, line \d+") as caught:
        strict.score([(ROW, ["good"]), (ROW, ["raise"])])
    assert isinstance(caught.value.__cause__, IndexError)
    results = strict.try_to_score([(ROW, ["raise"]), (ROW, ["good"])])
    assert [isinstance(result, ScoringError) for result in results] == [True, False]
    assert strict.counters()["score_failures"] == 2


def test_failed_answers_are_no_duplicates_and_keep_their_place(pooled: Scorer) -> None:
    (chain,) = pooled.score([(ROW, ["raise", None, "good", "raise", "good"])])
    assert chain.matrix == [[0.25, 0.25], [0, 0], [1.0, 0.5], [0.25, 0.25], [0, 0]]
    assert [a.is_duplicate for a in chain.answers] == [False, False, False, False, True]


def test_an_explanation_is_one_line_and_its_fault_costs_nothing(pooled: Scorer) -> None:
    (chain,) = pooled.score([(ROW, ["good", "unexplained"])])
    assert chain.answers[0].explanation == "it says 1.0"
    assert chain.answers[1].explanation.startswith("not explained: ZeroDivisionError")
    assert chain.answers[1].error is None


def test_processes_give_what_the_training_process_gives(pooled: Scorer) -> None:
    chains = [(row, ["good", None, "numbers of another kind", "good"]) for row in TASK.rows("x")]
    for deduplicate in (True, False):
        inline = scorer(explain=True).score(chains, deduplicate=deduplicate)
        assert pooled.score(chains, deduplicate=deduplicate) == inline


def test_hung_answers_run_side_by_side_and_leave_nothing() -> None:
    before = set(descendants(os.getpid()))
    made = scorer(workers=4)
    matrices(made, *["good"] * 8)  # they have started
    start = time.monotonic()
    found = matrices(made, "good", "good", *HANGS[:4])
    assert time.monotonic() - start < DEADLINE + 2
    assert found == [*[[[1.0, 0.5]]] * 2, *[[[0.25, 0.25]]] * 4]
    assert made.counters()["score_timeouts"] == 4
    made.close()
    wait_until(lambda: set(descendants(os.getpid())) <= before)


def test_counters_of_the_task_are_added_up_over_processes_that_died() -> None:
    made = scorer(workers=2)
    here = TASK.counters()["scored"]
    matrices(made, *["good"] * 6)
    matrices(made, "exit")
    matrices(made, *["good"] * 2)
    assert (
        made.counters()["scored"] - here == 8
    )  # what a process was busy with when it died is not told
    made.close()


def test_an_idle_process_that_was_killed_is_replaced_without_a_failure() -> None:
    before = set(descendants(os.getpid()))
    made = scorer(workers=1)
    matrices(made, "good")
    (pid,) = set(descendants(os.getpid())) - before
    os.kill(pid, 9)
    assert matrices(made, "good", "good") == [[[1.0, 0.5]]] * 2
    assert not made.failures
    made.close()


def test_processes_end_with_their_scorer_with_its_thread_and_with_a_killed_parent() -> None:
    before = set(descendants(os.getpid()))
    made = scorer(workers=1)
    matrices(made, "good")
    del made
    gc.collect()
    wait_until(lambda: set(descendants(os.getpid())) <= before)
    made = scorer(workers=1)
    for _ in range(2):  # each in a thread of its own: the second finds the process gone
        thread = threading.Thread(target=matrices, args=(made, "good"))
        thread.start()
        thread.join()
    assert not made.failures
    made.close()
    program = (
        "from tests.task_layer.test_scorer import *\n"
        "made = scorer(workers=2, deadline=100)\n"
        "matrices(made, 'good', 'good'); print('ready', flush=True); matrices(made, *HANGS[:2])"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        time.sleep(0.2)
        workers = descendants(parent.pid)
        assert len(workers) == 2
        parent.kill()
    wait_until(lambda: not [pid for pid in workers if os.path.exists(f"/proc/{pid}")])


def test_a_task_that_cannot_be_made_elsewhere_is_refused_with_its_reason() -> None:
    pool = ScoringPool({"_target_": "tests.task_layer.bad_task.Missing"}, 1, 1.0)
    with pytest.raises(ConfigError, match=r"scoring.workers=1: .*cannot make the task.*Missing"):
        pool.judge([(ROW, "good")])


def test_a_row_that_cannot_travel_is_refused() -> None:
    row = PromptRow("odd", "?", {"f": lambda: 0}, TASK.objectives)
    made = scorer(workers=1)
    with pytest.raises(ConfigError, match=r"row odd cannot be sent .* set scoring.workers=0"):
        made.score([(row, ["good"])])


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("workers", -1),
        ("workers", "many"),
        ("workers", 1.5),
        ("workers", True),
        ("deadline", 0),
        ("deadline", float("nan")),
        ("deadline", None),
        ("failure_value", 2.0),
        ("failure_value", "zero"),
        ("explain", "yes"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_key(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"scoring\.{setting}="):
        ScoringSettings(**{setting: value})


def test_only_tasks_that_may_block_get_processes_by_themselves() -> None:
    class Quick(BadTask):
        may_block = False

    settings = ScoringSettings(workers="auto")
    assert settings.num_workers(Quick()) == 0
    assert settings.num_workers(TASK) >= 1
    assert ScoringSettings(workers=3).num_workers(Quick()) == 3


def test_ten_thousand_answers_pass_through_one_process_in_seconds() -> None:
    made = scorer(workers=1)
    matrices(made, "good")
    start = time.monotonic()
    assert len(matrices(made, *["good"] * 10_000)) == 10_000
    assert time.monotonic() - start < 10
    made.close()
