"""The command vpo-search: whole runs, files, and one line for each wrong input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.http_server import Reply, Server, babble, cut, drip, drip_headers, send
from tests.search.conftest import local_policy
from tests.serve.conftest import served
from vpo_lightning.errors import ConfigError
from vpo_lightning.rollout.engine import SamplingSettings
from vpo_lightning.searching.curves import read_result
from vpo_lightning.searching.endpoint import Endpoint, EndpointPolicy
from vpo_lightning.searching.policies import Ask

SMALL = ("task=maze", "task.size=5", "prompts=2", "m=3", "budget.answers=6")


def search(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vpo_lightning.search", *words],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_a_search_leaves_what_the_documentation_lists(maze_folder: Path, tmp_path: Path) -> None:
    done = search(f"policy={maze_folder}", *SMALL, "sampling.max_tokens=12", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "outputs" / "search" / "best_of_n"
    assert sorted(path.name for path in folder.iterdir()) == [
        "archive.jsonl",
        "config.yaml",
        "events.jsonl",
        "result.json",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["outputs"]
    result = read_result(folder)
    assert result["status"] == "finished"
    assert result["policy_name"] == "model"
    assert result["spent"]["answers"] == 12
    assert [prompt["id"] for prompt in result["prompts"]] == ["test-1", "test-2"]
    for name in result["figures"]:
        for prompt in result["prompts"]:
            assert prompt["curve"][name][-1] == prompt[name]
    assert [point["budget"] for point in result["curves"]["answers"]] == [3, 6]
    archive = [json.loads(line) for line in (folder / "archive.jsonl").read_text().splitlines()]
    assert [len(record["answers"]) for record in archive] == [6, 6]
    again = search(f"policy={maze_folder}", *SMALL, "sampling.max_tokens=12", cwd=tmp_path)
    assert again.returncode == 2
    assert "resume=true" in again.stderr
    settings = ("sampling.max_tokens=12", "resume=true")
    finished = search(f"policy={maze_folder}", *SMALL, *settings, cwd=tmp_path)
    assert "finished already" in finished.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("policy=nowhere/x/y",), "policy=nowhere/x/y"),
        (("policy={folder}",), "task="),
        (("policy={folder}", "task=maze"), "budget"),
        (("policy={folder}", *SMALL, "budget.answers=-1"), "budget.answers"),
        (("policy={folder}", *SMALL, "search=greed"), "search=greed"),
        (("policy={folder}", *SMALL, "search.weights=[1,1]"), "search.weights"),
        (("policy={folder}", *SMALL, "search=evolve"), "search.shown=chain"),
        (("policy={folder}", *SMALL, "solved.cover={silver: 1}"), "solved.cover"),
        (("policy={folder}", *SMALL, "prompts=0"), "prompts=0"),
        (("policy={folder}", *SMALL, "split=dev"), "split"),
        (("policy=http://127.0.0.1:9/v1", *SMALL), "127.0.0.1:9"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_input_is_one_line_and_leaves_nothing_in_the_way(
    maze_folder: Path, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    done = search(*(word.format(folder=maze_folder) if "{folder}" in word else word
                    for word in words), cwd=tmp_path)  # fmt: skip
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if "Loading weights" not in line]
    assert len(lines) == 1
    assert message in lines[0]
    assert not list(tmp_path.rglob("result.json"))


def test_an_endpoint_answers_like_the_policy_behind_it(text_folder: Path) -> None:
    local = local_policy(text_folder, temperature=0.0, max_tokens=8)
    messages = [{"role": "user", "content": "hello"}]
    asks = [Ask("p", messages, (), seed, None) for seed in (1, 2**62)]
    with served(text_folder) as post:
        endpoint = Endpoint(f"{post.url}/v1")  # type: ignore[attr-defined]
        policy = EndpointPolicy(endpoint, SamplingSettings(8, 0.0), concurrency=2)
        remote = policy.sample(asks)
        policy.close()
    for theirs, ours in zip(remote, local.sample(asks), strict=True):
        assert theirs.text == ours.text
        assert theirs.completion_tokens == ours.completion_tokens
        assert theirs.prompt_tokens == local.num_tokens(messages)


@pytest.mark.parametrize("reply", [drip, drip_headers, cut, babble, send(b"[" * 100_000)])
def test_an_endpoint_that_gives_no_answer_is_refused_at_the_deadline(reply: Reply) -> None:
    server = Server(reply)
    started = time.monotonic()
    try:
        with pytest.raises(ConfigError, match="check the endpoint and its URL"):
            Endpoint(server.url, seconds=0.3).chat({"messages": []})
    finally:
        server.close()
    assert time.monotonic() - started < 2
