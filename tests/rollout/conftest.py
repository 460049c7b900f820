"""A vLLM server for the session: it takes half a minute to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rollout.vllm_servers import ServerScript, save_tied_maze_model, start_server


@pytest.fixture(scope="session")
def server_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of maze words with tied embeddings."""
    return save_tied_maze_model(tmp_path_factory.mktemp("model") / "tied")


@pytest.fixture(scope="session")
def server(server_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerScript]:
    """A server of that model, which a test may kill: it is started again."""
    script = start_server(server_model, tmp_path_factory.mktemp("server"))
    try:
        script.wait_until_up()
        yield script
    finally:
        script.process.terminate()
        script.process.wait(30)
