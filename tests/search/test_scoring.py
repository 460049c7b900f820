"""A scorer that hangs, crashes or returns nonsense stops no search and is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.search.conftest import ScriptedPolicy, problems
from tests.search.hostile import KINDS, HostileTask
from vpo_lightning.prompting import SingleAnswer
from vpo_lightning.scoring_pool import ScoringPool
from vpo_lightning.searching.best_of_n import BestOfN
from vpo_lightning.searching.budget import Budget
from vpo_lightning.searching.events import EventLog
from vpo_lightning.searching.loop import SearchLoop
from vpo_lightning.searching.quality import Solved
from vpo_lightning.searching.scores import AnswerScorer

TARGET = "tests.search.hostile.HostileTask"


@pytest.mark.slow
def test_every_kind_of_fault_is_a_zero_vector_and_a_count(tmp_path: Path) -> None:
    task = HostileTask()
    policy = ScriptedPolicy([*KINDS, "good"])
    scorer = AnswerScorer(task, ScoringPool({"_target_": TARGET}, workers=1, deadline=1.0))
    log = EventLog(tmp_path / "events.jsonl")
    loop = SearchLoop(BestOfN(), policy, scorer, Budget(calls=8), Solved(), log)
    with scorer:
        (found,), finished = loop.search.run(
            loop, problems(task, policy, SingleAnswer(), rows=1), tmp_path
        )
    assert finished
    flags = [answer.flag for answer in found.problem.archive.answers]
    assert flags == ["ok", "timeout", "failed", "failed", "failed", "failed", "failed", "ok"]
    assert found.failures["timeout"] == 1
    assert found.failures["failed"] == 5
    vectors = [answer.rewards for answer in found.problem.archive.answers]
    assert vectors == [(0.5, 0.5), *[(0.0, 0.0)] * 6, (0.5, 0.5)]
    assert found.spent.scorer_seconds > 1.0
