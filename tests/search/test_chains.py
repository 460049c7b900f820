"""Chains are continued by token ids, where an answer ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.search.conftest import local_policy, problems
from tests.task_layer.toy import VectorTask
from vpo_lightning.errors import ConfigError
from vpo_lightning.parsing import NumberedTags, StopRule
from vpo_lightning.prompting import MultiAnswer
from vpo_lightning.searching.archive import Chain, Proposal
from vpo_lightning.searching.policies import Ask, LocalPolicy, Sample
from vpo_lightning.searching.problem import Problem
from vpo_lightning.tasks.livecodebench.formats import FencedPrograms
from vpo_lightning.tasks.maze.task import MazeTask


def asked(problem: Problem, proposal: Proposal) -> Ask:
    rule = problem.stop_rule(proposal)
    return Ask(problem.row.id, proposal.messages, proposal.chain.ids, 0, rule)


def test_answers_one_by_one_are_the_chain_in_one_call(maze: MazeTask, maze_folder: Path) -> None:
    policy = local_policy(maze_folder, temperature=0.0, max_tokens=60)
    for problem in problems(maze, policy, MultiAnswer(4)):
        whole = problem.whole_chain()
        (sample,) = policy.sample([asked(problem, whole)])
        complete, texts = problem.read(whole, sample)
        chain, found = Chain(), []
        while chain.is_open and len(found) < 4:
            step = problem.next_answer(chain)
            (sample,) = policy.sample([asked(problem, step)])
            chain, answers = problem.read(step, sample)
            found += answers
        # The last separator may be missing: greedy decoding may end otherwise.
        assert chain.ids == complete.ids[: len(chain.ids)]
        assert found == texts[: len(found)]


def test_a_chain_of_given_answers_ends_where_the_next_one_begins(
    maze: MazeTask, maze_policy: LocalPolicy
) -> None:
    problem = problems(maze, maze_policy)[0]
    chain = problem.chain_of(["r0c0 r1c0", "r0c1"])
    assert chain.text == "r0c0 r1c0 | r0c1 | "
    words = [maze_policy.decode([token]) for token in chain.ids]
    assert words == ["r0c0", "r1c0", "|", "r0c1", "|"]
    assert problem.stop_rule(Proposal([], chain, 1, 3)) == StopRule("|", 1)
    sample = Sample((), "r0c0 r1c0 | r0c1 | r1c1 |", "stop", 0, 0, 0.0)
    assert problem.read(Proposal([], chain, 1, 3), sample)[1] == ["r1c1"]


def test_numbered_answers_end_at_their_own_tag(maze_policy: LocalPolicy) -> None:
    task = VectorTask(NumberedTags("response", "a vector"))
    problem = problems(task, maze_policy, rows=1)[0]
    begun = Chain((1, 2), "<response_1>[1, 0]</response_1>", 1)
    assert problem.stop_rule(problem.next_answer(begun)) == StopRule("</response_2>", 1)
    sample = Sample((3,), f"{begun.text}\n<response_2>[0, 1]</response_2>", "stop", 0, 1, 0.0)
    chain, texts = problem.read(problem.next_answer(begun), sample)
    assert (chain.ids, chain.num_answers, chain.is_open, texts) == ((1, 2, 3), 2, True, ["[0, 1]"])


@pytest.mark.parametrize("finish", ["eos", "length"])
def test_a_chain_that_ended_otherwise_is_not_continued(
    maze: MazeTask, maze_policy: LocalPolicy, finish: str
) -> None:
    problem = problems(maze, maze_policy)[0]
    chain, _ = problem.read(problem.next_answer(Chain()), Sample((4,), "r0c0", finish, 0, 1, 0.0))
    assert not chain.is_open


def test_answers_without_an_end_of_their_own_are_refused(maze_policy: LocalPolicy) -> None:
    task = VectorTask(FencedPrograms())
    problem = problems(task, maze_policy, rows=1)[0]
    with pytest.raises(ConfigError, match="best_of_n"):
        problem.stop_rule(problem.next_answer(Chain()))
    assert problem.stop_rule(problem.whole_chain()) is None
