"""OpenEvolve against our endpoint, with a policy that writes nonsense, and hostile scorers."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from tests.search.conftest import ScriptedPolicy, local_policy, problems
from tests.search.hostile import HostileTask
from vpo_lightning.errors import ConfigError
from vpo_lightning.prompting import SingleAnswer
from vpo_lightning.sandbox.sandbox import Sandbox
from vpo_lightning.scoring_pool import ScoringPool
from vpo_lightning.searching.budget import Budget
from vpo_lightning.searching.events import EventLog
from vpo_lightning.searching.evolution_desk import EvolutionDesk
from vpo_lightning.searching.files import write_archive, write_result
from vpo_lightning.searching.loop import PromptSearch, SearchLoop
from vpo_lightning.searching.openevolve import OpenEvolve
from vpo_lightning.searching.policies import LocalPolicy
from vpo_lightning.searching.quality import Solved
from vpo_lightning.searching.scores import AnswerScorer
from vpo_lightning.serving.loopback import LoopbackServer
from vpo_lightning.task import Task
from vpo_lightning.tasks.maze.task import MazeTask
from vpo_lightning.tasks.program_search.task import ProgramSearchTask

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def writer(text_folder: Path) -> LocalPolicy:
    """A policy that writes 24 random bytes."""
    return local_policy(text_folder, max_tokens=24)


def evolve(
    task: Task,
    policy: LocalPolicy,
    folder: Path,
    judges: ScoringPool | None = None,
    *,
    stop_after: int = 10**9,
    **limits: int,
) -> tuple[list[PromptSearch], bool]:
    """Three iterations on every problem of the task."""
    folder.mkdir(exist_ok=True)
    log = EventLog(folder / "events.jsonl")

    def is_stopping() -> bool:
        return (folder / "events.jsonl").read_bytes().count(b"\n") >= stop_after

    with AnswerScorer(task, judges) as scorer:
        loop = SearchLoop(
            OpenEvolve(iterations=3),
            policy,
            scorer,
            Budget(**(limits or {"calls": 9})),
            Solved(),
            log,
            is_stopping,
        )
        searches, finished = loop.search.run(
            loop, problems(task, policy, SingleAnswer(), rows=2), folder
        )
    log.close()
    write_archive(searches, folder / "archive.jsonl")
    return searches, finished


def programs(folder: Path, name: str) -> list[dict[str, object]]:
    return json.loads((folder / "openevolve" / name / "programs.json").read_text())


@pytest.fixture(scope="module")
def program_task() -> ProgramSearchTask:
    """Minimise a function, pack circles."""
    return ProgramSearchTask(sandbox=Sandbox(test_seconds=10, threads=4))


@pytest.fixture(scope="module")
def whole(
    program_task: ProgramSearchTask, writer: LocalPolicy, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[PromptSearch]]:
    """A run on both problems that was not interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    searches, finished = evolve(program_task, writer, folder)
    assert finished
    return folder, searches


def test_both_authored_problems_run_three_iterations(
    whole: tuple[Path, list[PromptSearch]],
) -> None:
    folder, searches = whole
    for found in searches:
        start, *children = found.problem.archive.answers
        assert start.call == -1
        assert start.flag == "ok"
        assert found.spent.calls == 3
        assert len(children) + found.failures["missing"] == 3
        assert found.failures["unparsed"] == len(children)  # 24 random bytes are no program
        database = programs(folder, found.problem.row.id)
        names = {objective.name for objective in found.problem.row.objectives}
        assert all(set(record["metrics"]) == names | {"combined_score"} for record in database)  # type: ignore[call-overload]
    result = write_result(searches, folder / "result.json", {"name": "openevolve"})
    assert result["spent"]["calls"] == 6
    assert result["prompts"][0]["curve"]["answers"][:2] == [0, 1]


def test_equal_seeds_and_any_interruption_give_equal_programs(
    whole: tuple[Path, list[PromptSearch]],
    program_task: ProgramSearchTask,
    writer: LocalPolicy,
    tmp_path: Path,
) -> None:
    folder, _ = whole
    _, finished = evolve(program_task, writer, tmp_path / "again", stop_after=3)
    assert not finished
    _, finished = evolve(program_task, writer, tmp_path / "again")
    assert finished
    again = tmp_path / "again"
    assert (again / "archive.jsonl").read_bytes() == (folder / "archive.jsonl").read_bytes()
    for name in ("minimize_function", "pack_circles"):
        assert programs(again, name) == programs(folder, name)
    written = (again / "events.jsonl").read_bytes().count(b"\n")
    assert written == (folder / "events.jsonl").read_bytes().count(b"\n")  # nothing asked twice


@pytest.mark.parametrize(
    ("kind", "count"), [("hang", "timeout"), ("crash", "failed"), ("nan", "failed"),
                        ("string", "failed")]
)  # fmt: skip
def test_a_scorer_that_misbehaves_does_not_stop_it(
    writer: LocalPolicy, tmp_path: Path, kind: str, count: str
) -> None:
    target = {"_target_": "tests.search.hostile.HostileTask", "kind": kind}
    judges = ScoringPool(target, workers=1, deadline=1.0)
    (found,), finished = evolve(HostileTask(kind), writer, tmp_path / "run", judges)
    assert finished
    assert found.spent.calls == 3
    assert found.failures[count] + found.failures["missing"] == 3
    assert found.failures[count] > 0
    assert found.problem.archive.answers[0].rewards == (0.5, 0.5)


def test_the_budget_ends_it(writer: LocalPolicy, tmp_path: Path) -> None:
    (found,), finished = evolve(HostileTask("good"), writer, tmp_path / "run", calls=2)
    assert finished
    assert found.spent.calls == 2


def test_one_that_asks_nothing_any_more_is_ended(writer: LocalPolicy, tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    task = HostileTask("good")
    search = OpenEvolve(iterations=3, stall_seconds=0.01)  # it takes longer to start
    with AnswerScorer(task, None) as scorer:
        loop = SearchLoop(search, writer, scorer, Budget(calls=3), Solved(), log)
        (found,), finished = search.run(loop, problems(task, writer, SingleAnswer()), tmp_path)
    assert finished
    assert found.failures["stalled"] == 1


def test_a_fence_that_is_not_closed_is_no_part_of_the_program(tmp_path: Path) -> None:
    task = ProgramSearchTask()
    policy = ScriptedPolicy([])
    log = EventLog(tmp_path / "events.jsonl")
    with AnswerScorer(task, None) as scorer:
        loop = SearchLoop(OpenEvolve(), policy, scorer, Budget(calls=3), Solved(), log)
        problem = problems(task, policy, SingleAnswer(), rows=2)[1]
        desk = EvolutionDesk(OpenEvolve(), loop, problem, [])
        program = problem.row.ground_truth["start_program"]
        with LoopbackServer(desk.app()) as server:
            for body in (program, f"```python\n{program}", f"```python\n{program}```"):
                request = urllib.request.Request(f"{server.url}/score", body.encode())
                urllib.request.urlopen(request).read()
    assert [answer.text for answer in problem.archive.answers] == [program.strip()] * 3


def test_what_it_cannot_start_from_is_refused(maze: MazeTask, maze_policy: LocalPolicy) -> None:
    (problem, *_) = problems(maze, maze_policy)
    with pytest.raises(ConfigError, match=r"search\.start"):
        OpenEvolve().check(problem)
    with pytest.raises(ConfigError, match="vocabulary"):
        OpenEvolve(start="r0c0").check(problem)
