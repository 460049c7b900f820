"""Chat completions: seeds, stops, log-probabilities, chains as choices, and every refusal."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from scripts.soak_serve import MALFORMED, MALFORMED_FIELDS
from tests.serve.conftest import Post, served
from vpo_lightning.parsing import SeparatedAnswers
from vpo_lightning.policy.loading import encode_messages, load_tokenizer
from vpo_lightning.rollout.engine import Completion, GenerationRequest, SamplingSettings
from vpo_lightning.rollout.hf_engine import HFEngine
from vpo_lightning.serving.chat_request import Limits
from vpo_lightning.tasks.maze.task import MazeTask

HELLO = [{"role": "user", "content": "hello"}]


def texts(answer: Any) -> list[str]:
    return [choice["message"]["content"] for choice in answer["choices"]]


def test_a_completion_has_the_openai_shape_and_counts_its_tokens(post: Post) -> None:
    status, answer = post({"messages": HELLO, "n": 2, "max_tokens": 5, "seed": 1})
    assert status == 200
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "tiny"
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    for choice in answer["choices"]:
        assert choice["message"]["role"] == "assistant"
        assert choice["finish_reason"] in ("stop", "length")
    usage = answer["usage"]
    assert usage["prompt_tokens"] == len("user: hello\nassistant: ")  # one token a byte
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_equal_seeds_give_equal_completions_alone_and_in_a_crowd(post: Post) -> None:
    bodies = [
        {"messages": HELLO, "seed": seed, "n": 2, "max_tokens": 4 + seed % 7} for seed in range(24)
    ]
    alone = [texts(post(body)[1]) for body in bodies]
    with ThreadPoolExecutor(12) as pool:
        together = [texts(answer) for _, answer in pool.map(post, bodies)]
    assert together == alone
    assert len({text for row in alone for text in row}) > 24


def test_no_seed_means_other_completions_each_time(post: Post) -> None:
    body = {"messages": HELLO, "max_tokens": 16}
    assert texts(post(body)[1]) != texts(post(body)[1])


def test_log_probabilities_are_those_of_the_engine(post: Post, text_folder: Path) -> None:
    body = {"messages": HELLO, "temperature": 0, "max_tokens": 6, "logprobs": True}
    (choice,) = post(body)[1]["choices"]
    records = choice["logprobs"]["content"]
    assert all(record["logprob"] <= 0 for record in records)
    engine = HFEngine(text_folder, dtype="float64")
    prompt = encode_messages(load_tokenizer(text_folder), HELLO)
    ((completion,),) = engine.generate(
        [GenerationRequest("r", prompt, [0])], SamplingSettings(6, 0.0)
    )
    assert [record["logprob"] for record in records] == pytest.approx(completion.logprobs)
    assert records[0]["bytes"] == list(records[0]["token"].encode())


def test_stop_texts_end_a_completion_and_are_cut_off(post: Post) -> None:
    base = {"messages": HELLO, "temperature": 0, "max_tokens": 32}
    (text,) = texts(post(base)[1])
    stop = next(c for c in text[4:] if c.isascii() and c.isprintable())
    for stops in (stop, [stop], [stop, "never in there"]):
        (choice,) = post({**base, "stop": stops})[1]["choices"]
        assert choice["message"]["content"] == text[: text.index(stop)]
        assert choice["finish_reason"] == "stop"


def test_the_answers_of_a_chain_are_choices(maze_folder: Path) -> None:
    task = MazeTask(size=5, style="compact", answers="cells")
    prompt = [{"role": "user", "content": task.rows("test")[0].prompt}]
    with served(maze_folder, answer_format=SeparatedAnswers()) as post:
        body = {"messages": prompt, "seed": 3, "n": 2, "max_tokens": 300, "answers": 3}
        status, answer = post(body)
        assert status == 200
        places = [(c["vpo"]["chain"], c["vpo"]["slot"]) for c in answer["choices"]]
        assert places == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
        asked = [{"role": "user", "content": f"{prompt[0]['content']} <set>"}]
        plain = post({**body, "messages": asked, "answers": None})[1]
        chains = [SeparatedAnswers().parse_multiple(text, 3) for text in texts(plain)]
        assert texts(answer) == [text or "" for chain in chains for text in chain]
        missing = [choice["vpo"]["is_missing"] for choice in answer["choices"]]
        assert missing == [text is None for chain in chains for text in chain]
        (single,) = post({**body, "n": 1, "answers": 1})[1]["choices"]
        assert single["vpo"]["answers"] == 1


@pytest.mark.parametrize(("body", "status"), MALFORMED, ids=lambda v: str(v)[:24])
def test_a_malformed_body_is_an_error_in_the_openai_shape(
    post: Post, body: bytes, status: int
) -> None:
    assert_error(post(body), status)


@pytest.mark.parametrize("fields", MALFORMED_FIELDS, ids=str)
def test_a_malformed_field_is_named(post: Post, fields: dict[str, Any]) -> None:
    answer = post({"messages": HELLO, **fields})
    assert_error(answer, 400)
    assert answer[1]["error"]["param"] in fields


def assert_error(answer: tuple[int, Any], status: int) -> None:
    assert answer[0] == status
    error = answer[1]["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]


@pytest.mark.parametrize(
    ("messages", "word"),
    [
        ([{"role": "user", "content": "x" * 600}], "512"),
        ([{"role": "user", "content": "\ud800"}], "messages"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "content"),
        ([{"role": "assistant", "content": "x"}], "last message"),
    ],
    ids=["long", "surrogate", "image", "not the user's"],
)
def test_prompts_that_cannot_be_answered_are_refused(
    post: Post, messages: list[Any], word: str
) -> None:
    answer = post({"messages": messages, "answers": 2})
    assert_error(answer, 400)
    assert word in answer[1]["error"]["message"]


def test_other_paths_and_methods_have_the_same_shape(post: Post) -> None:
    assert_error(post(b"", "/v1/completions"), 404)
    assert_error(post(b"", method="GET"), 405)
    status, models = post(b"", "/v1/models", "GET")
    assert (status, models["data"][0]["id"]) == (200, "tiny")
    assert post(b"", "/health", "GET")[1]["status"] == "ok"


def test_an_api_key_is_needed_everywhere_but_for_health(text_folder: Path) -> None:
    body = {"messages": HELLO, "max_tokens": 1}
    with served(text_folder, api_key="secret") as post:
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
            assert_error(post(body, **header), 401)
        assert_error(post(b"", "/v1/models", "GET"), 401)
        assert post(body, Authorization="Bearer secret")[0] == 200
        assert post(b"", "/health", "GET")[0] == 200


class SlowEngine:
    """Waits for a word before each batch, and fails for a prompt of its own choice."""

    version, positions = 0, 1024

    def __init__(self) -> None:
        self.entered, self.go = threading.Event(), threading.Event()
        self.batches: list[int] = []

    def generate(
        self, requests: list[GenerationRequest], sampling: SamplingSettings
    ) -> list[list[Completion]]:
        self.entered.set()
        assert self.go.wait(30)
        self.batches.append(len(requests))
        if any(len(request.prompt_ids) == len("user: fail\nassistant: ") for request in requests):
            raise RuntimeError("device-side assert")
        return [[Completion([2], [-1.0], "a", "eos") for _ in r.seeds] for r in requests]

    def load_weights(self, weights: Any, version: int) -> None: ...

    def close(self) -> None: ...


def test_a_full_queue_answers_429_and_waiting_requests_share_a_batch(text_folder: Path) -> None:
    engine = SlowEngine()
    body = {"messages": HELLO, "max_tokens": 1}
    with (
        served(text_folder, engine=engine, limits=Limits(waiting=4)) as post,  # type: ignore[arg-type]
        ThreadPoolExecutor(16) as pool,
    ):
        first = pool.submit(post, body)
        assert engine.entered.wait(30)
        others = [pool.submit(post, body) for _ in range(12)]
        while sum(other.done() for other in others) < 8:
            time.sleep(0.01)
        refused = [other.result() for other in others if other.done()]
        for answer in refused:
            assert_error(answer, 429)
        engine.go.set()
        statuses = sorted(other.result()[0] for other in [first, *others])
    assert statuses == [200] * 5 + [429] * 8
    assert engine.batches == [1, 4]


def test_a_failing_request_does_not_fail_its_batch(text_folder: Path) -> None:
    engine = SlowEngine()
    bodies = [{"messages": HELLO}, {"messages": [{"role": "user", "content": "fail"}]}] * 3
    with served(text_folder, engine=engine) as post, ThreadPoolExecutor(8) as pool:  # type: ignore[arg-type]
        answers = pool.map(post, bodies)
        engine.go.set()
        statuses = [status for status, _ in answers]
    assert statuses == [200, 500] * 3


def test_the_official_client_understands_the_server(post: Post) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{post.url}/v1", api_key="none", max_retries=0)  # type: ignore[attr-defined]
    answer = client.chat.completions.create(
        model="tiny", messages=HELLO, n=2, seed=1, max_tokens=4, extra_body={"answers": 2}
    )
    assert len(answer.choices) == 4
    assert answer.choices[1].vpo["slot"] == 1
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="tiny", messages=HELLO, temperature=7)
