"""What each search proposes and hands over, by hand."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.search.conftest import RunSearch, ScriptedPolicy, problems, search_vectors
from tests.task_layer.toy import VectorTask
from vpo_lightning.errors import ConfigError
from vpo_lightning.prompting import MultiAnswer, SingleAnswer
from vpo_lightning.searching.archive import Answer, Archive, Chain, Proposal, Reply, pareto_front
from vpo_lightning.searching.beam import Beam
from vpo_lightning.searching.best_of_n import BestOfN
from vpo_lightning.searching.budget import Budget
from vpo_lightning.searching.events import EventLog
from vpo_lightning.searching.evolve import Evolve, lexicase, with_parents
from vpo_lightning.searching.loop import SearchLoop
from vpo_lightning.searching.mcts import MCTS
from vpo_lightning.searching.policies import LocalPolicy
from vpo_lightning.searching.problem import Problem
from vpo_lightning.searching.quality import Guide, Solved
from vpo_lightning.searching.rerank import Rerank, read_rating
from vpo_lightning.searching.scores import AnswerScorer
from vpo_lightning.tasks.eureqa.task import EureqaTask
from vpo_lightning.tasks.maze.task import MazeTask


def answers(*vectors: tuple[float, ...]) -> list[Answer]:
    return [
        Answer(i, i, 0, f"answer {i}", vector, "ok", str(i)) for i, vector in enumerate(vectors)
    ]


def test_a_set_is_worth_the_mean_over_weights_of_its_best_answer() -> None:
    # Two objectives, w uniform on the segment: E max(w, 1 - w) = 3/4, E w = 1/2.
    assert Guide().set_value([(1.0, 0.0), (0.0, 1.0)]) == pytest.approx(0.75, abs=0.01)
    assert Guide().set_value([(1.0, 0.0)]) == pytest.approx(0.5, abs=0.01)
    assert Guide([3, 1]).set_value([(1.0, 0.0), (0.0, 1.0)]) == 0.75
    assert Guide().set_value([]) == 0.0


def test_best_of_n_hands_over_the_best_by_the_weights(tmp_path: Path) -> None:
    texts = ["[0.9, 0]", "[0, 1]", "[0.5, 0.6]"]
    for name, weights, expected in (("a", None, 0.55), ("b", [1, 0], 0.45), ("c", [0, 1], 0.5)):
        (tmp_path / name).mkdir()
        found = search_vectors(BestOfN(weights=weights), texts, tmp_path / name, calls=3)
        assert found.curve.last()["selected"] == expected


def test_the_majority_is_handed_over_whatever_its_reward(tmp_path: Path) -> None:
    texts = ["[1, 1]", "[0, 0.5]", "nonsense", "nonsense", "nonsense", "[0, 0.5]"]
    found = search_vectors(Rerank(by="majority"), texts, tmp_path, calls=6)
    assert found.curve.points["selected"] == [1.0, 1.0, 1.0, 1.0, 1.0, 0.25]
    assert found.failures["unparsed"] == 3


def test_the_majority_is_one_of_answers_and_not_of_rewards(tmp_path: Path) -> None:
    # Three different wrong answers earn the same; the right one is given twice.
    task = EureqaTask()
    row = task.rows("test")[0]
    right = row.ground_truth["chain_entities"][0]
    names = ["Nobody", "No One", right, "Nemo", f"The {right.upper().replace(' ', '_')}"]
    policy = ScriptedPolicy([f"<entity_A>{name}</entity_A>" for name in names])
    log = EventLog(tmp_path / "events.jsonl")
    loop = SearchLoop(
        Rerank(by="majority"), policy, AnswerScorer(task, None), Budget(calls=5), Solved(), log
    )
    problem = Problem(task, row, SingleAnswer(), policy, 0, Archive())
    ((found,), _) = loop.search.run(loop, [problem], tmp_path)
    assert found.curve.points["selected"] == [0.0, 0.0, 0.0, 0.0, 0.2]


@pytest.mark.parametrize(
    ("text", "rating"),
    [("8", 8.0), ("I say 7.5 of 10", 7.5), ("10", 10.0), ("42", None), ("none", None), ("", None)],
)
def test_the_judges_number_is_read(text: str, rating: float | None) -> None:
    assert read_rating(text) == rating


@pytest.mark.parametrize(
    ("search", "key"),
    [
        (lambda: Rerank(by="luck"), "search.by"),
        (lambda: Rerank(by="weights"), "search.weights"),
        (lambda: Rerank(by="judge"), "search.judge.url"),
        (lambda: BestOfN(weights=[0, 0]), "search.weights"),
        (lambda: BestOfN(calls_per_round=0), "search.calls_per_round"),
        (lambda: Beam(width=0), "search.width"),
        (lambda: MCTS(leaves=0), "search.leaves"),
        (lambda: Evolve(selection="best"), "search.selection"),
        (lambda: Evolve(islands=0), "search.islands"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_key(search: object, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        search().guide  # type: ignore[operator]  # noqa: B018


def test_the_front_holds_what_nothing_dominates_and_equals_once() -> None:
    found = answers((1, 0), (0, 1), (0.5, 0.5), (0.5, 0.4), (1, 0), (0, 0))
    assert [answer.index for answer in pareto_front(found)] == [0, 1, 2]


def test_lexicase_chooses_specialists_and_never_the_dominated() -> None:
    found = answers((1, 0.1), (0.1, 1), (0.9, 0.9), (0, 0))
    chosen = {lexicase(found, random.Random(seed)).index for seed in range(50)}
    assert chosen == {0, 1}


def test_a_beam_goes_on_with_the_most_valuable_beginnings(
    maze: MazeTask, maze_policy: LocalPolicy
) -> None:
    (problem, *_) = problems(maze, maze_policy)
    beam = Beam(width=1, branches=3).begin(problem, Solved())
    first = list(beam.propose())
    assert [len(proposal.chain.ids) for proposal in first] == [0, 0, 0]
    replies = [
        reply(problem, proposal, i, reward)
        for i, (proposal, reward) in enumerate(zip(first, (0.2, 0.8, 0.5), strict=True))
    ]
    beam.learn(replies)
    second = list(beam.propose())
    assert [proposal.chain.ids for proposal in second] == [(1,)] * 3
    assert {proposal.num_answers for proposal in second} == {1}


def reply(problem: Problem, proposal: Proposal, index: int, reward: float) -> Reply:
    chain = Chain((*proposal.chain.ids, index), "r0c0 |", proposal.chain.num_answers + 1)
    vector = (reward,) * len(problem.row.objectives)
    return Reply(proposal, chain, [Answer(index, index, 0, "", vector, "ok", str(index))])


def test_tree_search_visits_the_better_child_more_often(
    maze: MazeTask, maze_policy: LocalPolicy
) -> None:
    (problem, *_) = problems(maze, maze_policy, MultiAnswer(50))
    tree = MCTS(leaves=1, widening=1.0, exploration=0.1).begin(problem, Solved())
    continued: list[int] = []
    for step in range(40):
        (proposal,) = tree.propose()
        # The second first answer is good, and so is all that follows it.
        is_good = proposal.chain.ids[:1] == (1,) or (not proposal.chain.ids and step == 1)
        tree.learn([reply(problem, proposal, step, 0.9 if is_good else 0.1)])
        continued += proposal.chain.ids[:1]
    assert continued.count(1) > 0.6 * len(continued)


def test_parents_are_shown_with_their_rewards_in_words() -> None:
    task = VectorTask()
    (row,) = task.rows("test")
    shown = with_parents(row, answers((0.25, 1.0))).prompt
    assert shown.startswith("Which vector?\n\n")
    assert "Earlier answer 1 (much x: 0.25; much y: 1.00):\nanswer 0" in shown


def test_parents_are_asked_about_in_the_next_generation(tmp_path: Path) -> None:
    texts = ["[1, 0]", "[0, 1]", "[0.2, 0.2]", "[1, 1]"]
    task = VectorTask()
    policy = ScriptedPolicy(texts)
    evolve = Evolve(islands=1, calls_per_island=2, parents=2)
    log = EventLog(tmp_path / "events.jsonl")
    loop = SearchLoop(evolve, policy, AnswerScorer(task, None), Budget(calls=4), Solved(), log)
    evolve.run(
        loop, [Problem(task, task.rows("test")[0], SingleAnswer(), policy, 0, Archive())], tmp_path
    )
    contents = [ask.messages[-1]["content"] for ask in policy.asks]
    assert all("Earlier answer" not in content for content in contents[:2])
    for content in contents[2:]:
        assert "much x: 1.00; much y: 0.00" in content
        assert "much x: 0.00; much y: 1.00" in content


def test_a_closed_vocabulary_gets_its_parents_as_the_beginning_of_the_chain(
    maze: MazeTask, maze_policy: LocalPolicy, run_search: RunSearch
) -> None:
    for found in run_search(Evolve(shown="chain", parents=1), answers=20):
        slots = {answer.slot for answer in found.problem.archive.answers}
        assert slots == {0, 1, 2}
    with pytest.raises(ConfigError, match=r"search\.shown=chain"):
        Evolve(shown="words").check(problems(maze, maze_policy)[0])
    with pytest.raises(ConfigError, match=r"search\.parents=3"):
        Evolve(shown="chain", parents=3).check(problems(maze, maze_policy)[0])
