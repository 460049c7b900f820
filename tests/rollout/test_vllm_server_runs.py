"""Whole training runs that sample from a real vLLM server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.conftest import SMALL
from tests.rollout.vllm_servers import ServerScript
from tests.runs.records import metrics, sampled_ids, weights
from vpo_lightning.rollout.store import read_rollouts

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]
pytest.importorskip("vllm")

Command = Callable[..., list[str]]


@pytest.fixture(scope="module")
def command(server: ServerScript, server_model: Path, warmup_cache: Path) -> Command:
    """The command line of a small run in a folder."""
    settings = [
        f"cache_dir={warmup_cache}",
        "model=pretrained",
        f"model.path={server_model}",
        "model.dtype=float32",
        "rollout.sampling.max_tokens=48",
        "rollout.group_size=16",
        "engine=vllm_server",
        f"engine.urls=[{server.url}]",
    ]

    def line(folder: Path, *overrides: str) -> list[str]:
        place = f"hydra.run.dir={folder}"
        merged = {s.split("=")[0]: s for s in [*SMALL, *settings, *overrides, place]}
        if "engine=vllm" in overrides:
            del merged["engine.urls"]
        return [sys.executable, "-m", "vpo_lightning.train", *merged.values()]

    return line


@pytest.fixture(scope="module")
def undisturbed(command: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that others are compared with."""
    folder = tmp_path_factory.mktemp("runs") / "undisturbed"
    finish(command(folder))
    return folder


def finish(line: list[str]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        line, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr


def test_a_run_is_that_of_the_engine_in_the_process(
    undisturbed: Path, command: Command, tmp_path: Path
) -> None:
    mismatches = [record["rollout/logprob_mismatch"] for record in metrics(undisturbed)]
    assert len(mismatches) == 3
    assert max(mismatches) < 1e-4
    finish(command(tmp_path / "inside", "engine=vllm"))
    assert sampled_ids(tmp_path / "inside") == sampled_ids(undisturbed)


def test_batches_are_sampled_ahead_by_a_server_as_by_the_engine_in_the_process(
    command: Command, tmp_path: Path
) -> None:
    for name, engine in (("served", ()), ("inside", ("engine=vllm",))):
        finish(command(tmp_path / name, "rollout.staleness=1", "loss=importance", *engine))
    assert sampled_ids(tmp_path / "served") == sampled_ids(tmp_path / "inside")
    records = read_rollouts(tmp_path / "served" / "rollouts")
    assert {(r["step"], r["policy_version"]) for r in records} == {(0, 0), (1, 0), (2, 1)}


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_share_a_server_as_one_process_uses_it(
    undisturbed: Path, command: Command, tmp_path: Path, strategy: str
) -> None:
    processes = (f"strategy={strategy}", "strategy.devices=2", "strategy.accelerator=cpu")
    finish(command(tmp_path / "two", *processes))
    assert sampled_ids(tmp_path / "two") == sampled_ids(undisturbed)
    trained = weights(tmp_path / "two")
    for name, value in weights(undisturbed).items():
        assert (value - trained[name]).abs().max() < 1e-5


def test_a_server_killed_in_the_middle_of_a_step_changes_nothing_in_the_run(
    undisturbed: Path, command: Command, server: ServerScript, tmp_path: Path
) -> None:
    folder = tmp_path / "disturbed"
    line = command(folder, "engine.concurrency=3")  # completions are under way for seconds
    with (
        subprocess.Popen(line, env={**os.environ, "OMP_NUM_THREADS": "1"}) as run,
        httpx.Client(trust_env=False) as client,
    ):
        try:
            wait_for(lambda: any(folder.glob("rollouts/step_000000*")), run)
            wait_for(lambda: running_requests(client, server) > 2, run)
            server.kill()
            assert run.wait(400) == 0
        finally:
            run.send_signal(signal.SIGTERM)
    log = (folder / "log.txt").read_text()
    assert "lost for now: /inference/v1/generate" in log  # its completions were under way
    assert "is back and has the current weights" in log
    records = list(read_rollouts(folder / "rollouts"))
    assert len(records) == 3 * 64
    assert all(record["policy_version"] == record["step"] for record in records)
    assert sampled_ids(folder) == sampled_ids(undisturbed)
    assert max(record["rollout/logprob_mismatch"] for record in metrics(folder)) < 1e-4


def wait_for(claim: Callable[[], bool], run: subprocess.Popen[bytes], seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not claim():
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)


def running_requests(client: httpx.Client, server: ServerScript) -> float:
    lines = client.get(f"{server.url}/metrics").text.splitlines()
    return sum(
        float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running")
    )
