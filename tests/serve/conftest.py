"""Servers on small policies, in threads of the test's process."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.text_model import save_text_model
from vpo_lightning.parsing import AnswerFormat, NumberedTags
from vpo_lightning.policy.loading import encode_messages, load_tokenizer, save_model_folder
from vpo_lightning.policy.scratch import ScratchModel, build_scratch_model
from vpo_lightning.rollout.engine import RolloutEngine
from vpo_lightning.rollout.hf_engine import HFEngine
from vpo_lightning.serving.app import create_app
from vpo_lightning.serving.batcher import Batcher
from vpo_lightning.serving.chat_request import Limits
from vpo_lightning.serving.loopback import LoopbackServer
from vpo_lightning.serving.service import ChatService
from vpo_lightning.tasks.maze.task import MazeTask


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model for any text."""
    return save_text_model(tmp_path_factory.mktemp("text") / "model")


@pytest.fixture(scope="session")
def maze_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with random weights that knows the words of 5x5 mazes."""
    task = MazeTask(size=5, style="compact", answers="cells")
    size = ScratchModel(hidden_size=32, num_layers=1)
    folder = tmp_path_factory.mktemp("maze") / "model"
    return save_model_folder(*build_scratch_model(task.vocabulary(), size, seed=0), folder)


Post = Callable[..., tuple[int, Any]]


@contextmanager
def served(
    folder: Path,
    *,
    engine: RolloutEngine | None = None,
    limits: Limits | None = None,
    answer_format: AnswerFormat | None = None,
    api_key: str | None = None,
) -> Iterator[Post]:
    """A function that posts a body to a server on a model folder."""
    tokenizer = load_tokenizer(folder)
    limits = limits or Limits()
    service = ChatService(
        model="tiny",
        batcher=Batcher(engine or HFEngine(folder, dtype="float64"), limits.waiting),
        encode=lambda messages: encode_messages(tokenizer, messages),
        decode=lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True),  # type: ignore[return-value]
        answer_format=answer_format or NumberedTags("answer", "your answer"),
        positions=512,
        default_tokens=8,
        limits=limits,
    )
    with LoopbackServer(create_app(service, api_key)) as server:

        def post(
            body: Any, path: str = "/v1/chat/completions", method: str = "POST", **headers: str
        ) -> tuple[int, Any]:
            connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            status, parsed = answer.status, json.loads(answer.read())
            connection.close()
            return status, parsed

        post.url = server.url  # type: ignore[attr-defined]
        yield post


@pytest.fixture(scope="session")
def post(text_folder: Path) -> Iterator[Post]:
    """Posts to a server on the tiny text model."""
    with served(text_folder) as function:
        yield function
