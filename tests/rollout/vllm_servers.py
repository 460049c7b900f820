"""A real vLLM server on loopback, and a model for it, shared by the tests of a session."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch

from vpo_lightning.policy.loading import save_model_folder
from vpo_lightning.policy.scratch import ScratchModel, build_scratch_model
from vpo_lightning.tasks.maze.task import MazeTask

SCRIPT = Path(__file__).parents[2] / "scripts" / "serve_rollouts.py"


@dataclass
class ServerScript:
    """A running `scripts/serve_rollouts.py` with one server."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def processes(self) -> list[int]:
        """All processes of the server, the one that listens first."""
        children = _children(self.process.pid)
        return [*children, *(i for child in children for i in _children(child))]

    def engine_core(self) -> int:
        """The process that computes."""
        for pid in self.processes():
            if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        raise AssertionError("the server has no engine process")

    def kill(self) -> None:
        """Kills the server with SIGKILL; the script starts it again."""
        [leader] = _children(self.process.pid)
        os.kill(leader, signal.SIGKILL)

    def wait_until_up(self, seconds: float = 240) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                if httpx.get(f"{self.url}/health", timeout=2, trust_env=False).is_success:
                    return
            except httpx.HTTPError:
                time.sleep(0.5)
        raise AssertionError("no server:\n" + self.log.read_text(errors="replace")[-4000:])


def start_server(model: Path, folder: Path) -> ServerScript:
    """Starts the script; the server takes half a minute to come up."""
    port = free_port()
    command = [sys.executable, str(SCRIPT), str(model), "--port", str(port)]
    command += ["--gpus-per-server", "0", "--dtype", "float32", "--max-model-len", "400"]
    log = folder / "server.log"
    process = subprocess.Popen(
        [*command, "--", "--max-num-seqs", "64"],
        stdout=log.open("wb"),
        stderr=subprocess.STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    return ServerScript(f"http://127.0.0.1:{port}", process, log)


def save_tied_maze_model(folder: Path) -> Path:
    """A model of maze words whose head is its embedding: vLLM's CPU build packs a copy of it."""
    words = MazeTask(size=5, style="compact", answers="cells").vocabulary()
    made, tokenizer = build_scratch_model(words, ScratchModel(), seed=0)
    config = made.config
    config.tie_word_embeddings = True
    model = type(made)(config)
    state = {name: value for name, value in made.state_dict().items() if name != "lm_head.weight"}
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    model.generation_config = made.generation_config
    return save_model_folder(model, tokenizer, folder)


def changed(model: Any, seed: int) -> dict[str, torch.Tensor]:
    """Other weights for the model, by state-dict name; `model` gets them too."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=rng)
    return model.state_dict()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text().split()]
