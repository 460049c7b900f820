"""Policies that searches are tried on, and whole searches in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.task_layer.toy import VectorTask
from tests.text_model import save_text_model
from vpo_lightning.policy.loading import encode_messages, load_tokenizer, save_model_folder
from vpo_lightning.policy.scratch import ScratchModel, build_scratch_model
from vpo_lightning.prompting import Message, MultiAnswer, PromptStyle, SingleAnswer
from vpo_lightning.rollout.engine import SamplingSettings
from vpo_lightning.rollout.hf_engine import HFEngine
from vpo_lightning.searching.archive import Archive
from vpo_lightning.searching.budget import Budget
from vpo_lightning.searching.events import EventLog
from vpo_lightning.searching.files import write_archive
from vpo_lightning.searching.loop import PromptSearch, SearchLoop
from vpo_lightning.searching.policies import Ask, LocalPolicy, Sample
from vpo_lightning.searching.problem import Problem
from vpo_lightning.searching.quality import Solved
from vpo_lightning.searching.scores import AnswerScorer
from vpo_lightning.searching.search import Search
from vpo_lightning.task import Task
from vpo_lightning.tasks.maze.task import MazeTask

RunSearch = Callable[..., list[PromptSearch]]


@pytest.fixture(scope="session")
def maze() -> MazeTask:
    """5x5 mazes in words."""
    return MazeTask(size=5, style="compact", answers="cells", test_rows=4)


@pytest.fixture(scope="session")
def maze_folder(tmp_path_factory: pytest.TempPathFactory, maze: MazeTask) -> Path:
    """A small model with random weights that knows the words of the mazes."""
    folder = tmp_path_factory.mktemp("maze") / "model"
    size = ScratchModel(hidden_size=32, num_layers=1, dtype="float64")
    return save_model_folder(*build_scratch_model(maze.vocabulary(), size, seed=0), folder)


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model for any text."""
    return save_text_model(tmp_path_factory.mktemp("text") / "model")


def local_policy(folder: Path, temperature: float = 1.0, max_tokens: int = 12) -> LocalPolicy:
    """A model folder as a policy."""
    tokenizer = load_tokenizer(folder)
    return LocalPolicy(
        HFEngine(folder, dtype="float64"),
        lambda messages: encode_messages(tokenizer, messages),
        lambda text: tuple(tokenizer(text, add_special_tokens=False)["input_ids"]),  # type: ignore[arg-type]
        lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True),  # type: ignore[return-value]
        SamplingSettings(max_tokens=max_tokens, temperature=temperature),
    )


@pytest.fixture(scope="session")
def maze_policy(maze_folder: Path) -> LocalPolicy:
    """The random maze model."""
    return local_policy(maze_folder)


def problems(
    task: Task, policy: Any, style: PromptStyle | None = None, rows: int = 3
) -> list[Problem]:
    """The first prompts of a task's test split."""
    found = task.rows("test")[:rows]
    return [Problem(task, row, style or MultiAnswer(3), policy, 7, Archive()) for row in found]


@pytest.fixture
def run_search(maze: MazeTask, maze_policy: LocalPolicy, tmp_path: Path) -> RunSearch:
    """Runs a search on three mazes; its files are in `folder`."""

    def run(
        search: Search, folder: Path | None = None, *, solved: Solved | None = None, **limits: Any
    ) -> list[PromptSearch]:
        place = folder or tmp_path
        place.mkdir(exist_ok=True)
        log = EventLog(place / "events.jsonl")
        with AnswerScorer(maze, None) as scorer:
            loop = SearchLoop(
                search, maze_policy, scorer, Budget(**limits), solved or Solved(), log
            )
            searches, finished = search.run(loop, problems(maze, maze_policy), place)
        log.close()
        assert finished
        write_archive(searches, place / "archive.jsonl")
        return searches

    return run


class ScriptedPolicy:
    """Says what a test wrote down, text after text, at a cost of 10 read and 5 written tokens."""

    continues_chains = True
    max_tokens = 5

    def __init__(self, texts: Sequence[str]) -> None:
        self.asks: list[Ask] = []
        self._texts = iter(texts)

    def sample(self, asks: Sequence[Ask]) -> list[Sample]:
        self.asks += asks
        return [Sample((), next(self._texts), "eos", 10, 5, 0.1) for _ in asks]

    def num_tokens(self, messages: list[Message]) -> int:
        return 10

    def encode_text(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())

    def close(self) -> None:
        pass


def search_vectors(
    search: Search, texts: Sequence[str], folder: Path, *, m: int = 1, **limits: Any
) -> PromptSearch:
    """A search whose answers are their own reward vectors, such as ``[1, 0]``."""
    task, log = VectorTask(), EventLog(folder / "events.jsonl")
    policy = ScriptedPolicy(texts)
    style = SingleAnswer() if m == 1 else MultiAnswer(m)
    loop = SearchLoop(
        search, policy, AnswerScorer(task, None), Budget(**limits), Solved(scalar=0.9), log
    )
    (found,), _ = loop.search.run(loop, problems(task, policy, style, rows=1), folder)
    log.close()
    return found
