import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.http_server import Reply, Server, babble, cut, drip, drip_headers, pour, send
from vpo_lightning.errors import ConfigError
from vpo_lightning.prompting import GoalConditioned, MultiAnswer, SingleAnswer
from vpo_lightning.scoring import score_answers
from vpo_lightning.tasks.ultrafeedback.endpoint import Endpoint
from vpo_lightning.tasks.ultrafeedback.judge import ChatJudge, RewardModelJudge
from vpo_lightning.tasks.ultrafeedback.ratings import ASPECTS
from vpo_lightning.tasks.ultrafeedback.task import UltrafeedbackTask
from vpo_lightning.verdict import judge_answer

ROOT = Path(__file__).parents[2]
REAL = Path(os.environ.get("VPO_REAL_DATA", ROOT.parent / "shared"))
AUTHORED = ROOT / "tasks" / "ultrafeedback" / "data"
TASK = UltrafeedbackTask()


# Offline


def test_a_choice_is_worth_the_ratings_of_that_completion():
    row = TASK.row_from_ground_truth("r", {"ratings": [[5, 5, 5, 5], [1, 2, 3, 4]]})
    assert TASK.score("<choice>1</choice>", row) == [1, 1, 1, 1]
    assert TASK.score("I take <choice> 2 </choice>.", row) == [0, 0.25, 0.5, 0.75]
    assert TASK.score("2", row) == [0, 0.25, 0.5, 0.75]
    for outside in ("0", "<choice>3</choice>", "<choice>9999</choice>"):
        assert TASK.score(outside, row) == [0, 0, 0, 0]
        assert TASK.is_parsed(outside)
    for unread in ("", "none", "<choice>two</choice>", "1 or 2", "<choice>-1</choice>", "²"):
        assert not TASK.is_parsed(unread)
        assert TASK.score(unread, row) == [0, 0, 0, 0]


def test_a_chain_keeps_one_of_equal_ratings():
    row = TASK.row_from_ground_truth("r", {"ratings": [[5, 5, 5, 5], [1, 2, 3, 4], [5, 5, 5, 5]]})
    style = MultiAnswer(4)
    text = style.render(TASK, ["<choice>1</choice>", "<choice>3</choice>", "2", "x"])
    scored = score_answers(TASK, row, style.parse(TASK, text))
    assert scored.matrix == [[1, 1, 1, 1], [0, 0.25, 0.5, 0.75], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert scored.num_parsed == 3


@given(st.text())
def test_no_text_breaks_the_scoring(text):
    row = TASK.rows("train")[0]
    assert len(TASK.score(text, row)) == 4


@pytest.mark.parametrize("split", ["train", "test"])
def test_authored_rows_list_the_rated_completions_only(split):
    rows = TASK.rows(split)
    stored = [json.loads(line) for line in (AUTHORED / f"{split}.jsonl").read_text().splitlines()]
    assert len(rows) == len(stored) == 8
    left_out = 0
    for row, record in zip(rows, stored, strict=True):
        complete = [
            completion
            for completion in record["completions"]
            if all(completion["annotations"][a]["Rating"] != "N/A" for a in ASPECTS)
        ]
        left_out += len(record["completions"]) - len(complete)
        for i, completion in enumerate(complete, start=1):
            assert f"Response {i}:\n{completion['response']}" in row.prompt
            expected = [(int(completion["annotations"][a]["Rating"]) - 1) / 4 for a in ASPECTS]
            assert TASK.score(f"<choice>{i}</choice>", row) == expected
        assert f"Response {len(complete) + 1}:" not in row.prompt
    assert left_out > 0
    assert rows.counts == {"completions without all ratings": left_out}  # type: ignore[attr-defined]


def test_the_ratings_of_the_authored_rows_nearly_agree():
    vectors = np.array([r for row in TASK.rows("train") for r in row.ground_truth["ratings"]])
    correlations = np.corrcoef(vectors.T)
    assert correlations[~np.eye(4, dtype=bool)].min() > 0.5


def stored_row(**changes: Any) -> dict[str, Any]:
    return json.loads((AUTHORED / "train.jsonl").read_text().splitlines()[0]) | changes


def completion(rating: object = "5", **changes: Any) -> dict[str, Any]:
    annotations = {aspect: {"Rating": "5"} for aspect in ASPECTS} | {"honesty": {"Rating": rating}}
    return {"response": "x", "annotations": annotations} | changes


def load(tmp_path: Path, *rows: dict[str, Any]):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return UltrafeedbackTask(train_path=str(path)).rows("train")


def test_rows_with_fewer_than_two_rated_completions_are_left_out_and_counted(tmp_path):
    alone = [completion(), completion("N/A"), completion(annotations=None)]
    rows = load(tmp_path, stored_row(completions=alone), stored_row())
    assert [row.id for row in rows] == ["train-2"]
    reason = "rows: fewer than 2 completions with all ratings"
    assert rows.counts[reason] == 1  # type: ignore[attr-defined]


def test_nothing_left_out_is_not_counted(tmp_path, caplog):
    rows = load(tmp_path, stored_row())
    assert rows.counts == {}  # type: ignore[attr-defined]
    assert not caplog.records


def test_annotations_in_lists_and_ratings_as_numbers_are_read(tmp_path):
    listed = completion(annotations={aspect: [{"Rating": "4"}] for aspect in ASPECTS})
    (row,) = load(tmp_path, stored_row(completions=[listed, completion(2), completion("3.5")]))
    assert row.ground_truth["ratings"] == [[4, 4, 4, 4], [5, 2, 5, 5], [5, 3.5, 5, 5]]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (
            stored_row(completions=[completion("6")] * 2),
            r"completions\[0\]\.annotations\.honesty\.Rating is '6'",
        ),
        (stored_row(completions=[completion("good")] * 2), "Rating is 'good'; expected a rating"),
        (stored_row(completions=[completion(None)] * 2), "Rating is None"),
        (stored_row(completions=[completion("nan")] * 2), "Rating is 'nan'"),
        (stored_row(completions=[completion(True)] * 2), "Rating is True"),
        (
            stored_row(completions=[{"response": "x"}] * 2),
            r"completions\[0\]\.annotations is missing",
        ),
        (stored_row(completions=[completion(response=3)] * 2), r"completions\[0\]\.response is 3"),
        (stored_row(instruction=None), "field instruction is None; expected text"),
        (stored_row(completions=None), "field completions is None; expected a list"),
    ],
)
def test_a_malformed_row_names_file_row_field_and_key(tmp_path, row, problem):
    with pytest.raises(ConfigError, match=rf"a\.jsonl, row 2 \(task\.train_path\): .*{problem}"):
        load(tmp_path, stored_row(), row)


def test_each_prompt_shows_the_form_once():
    row = TASK.rows("train")[0]
    for style, weights in (
        (SingleAnswer(), None),
        (MultiAnswer(3), None),
        (GoalConditioned(), [0.25] * 4),
    ):
        (message,) = style.messages(TASK, row, weights)
        assert message["content"].count("<choice>") == 1


@pytest.mark.real_data
@pytest.mark.skipif(not REAL.is_dir(), reason="needs VPO_REAL_DATA")
def test_published_rows_are_read():
    folder = REAL / "data" / "ultrafeedback"
    (row,) = UltrafeedbackTask(train_path=str(folder / "ultrafeedback_ratings_only_1.jsonl")).rows(
        "train"
    )
    assert np.shape(row.ground_truth["ratings"]) == (4, 4)
    with pytest.raises(ConfigError, match="no row is left"):  # one annotated completion
        UltrafeedbackTask(train_path=str(folder / "ultrafeedback_readme_1.jsonl")).rows("train")


# Online: a real server on this machine


class JudgeServer(Server):
    def endpoint(self, **settings: Any) -> Endpoint:
        return Endpoint(**{"url": self.url, "pause": 0.01, "timeout": 5, **settings})


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    running = JudgeServer()
    yield running
    running.close()


def rated(text: str) -> Reply:
    return send({"choices": [{"message": {"content": text}}]})


GOOD = json.dumps(dict(zip(ASPECTS, (5, 3, 1, 2), strict=True)))
REWARDS = [1.0, 0.5, 0.0, 0.25]


def test_the_judge_is_asked_at_temperature_zero_and_its_ratings_are_the_rewards(
    server, monkeypatch
):
    monkeypatch.setenv("JUDGE_KEY", "secret")
    server.replies = [rated(f'Here: {{}} {{"honesty": 9}} {GOOD} done')]
    judge = ChatJudge(endpoint=server.endpoint(key_variable="JUDGE_KEY"), model="judge")
    task = UltrafeedbackTask(mode="online", judge=judge)
    row = task.rows("train")[0]
    assert task.score("my answer", row) == REWARDS
    (path, body, key), *others = server.requests
    assert not others
    assert path == "/v1/chat/completions"
    assert (body["model"], body["temperature"], key) == ("judge", 0, "Bearer secret")
    (message,) = body["messages"]
    assert row.prompt in message["content"]
    assert "my answer" in message["content"]
    assert task.counters() == {"ratings": 1}


def test_online_chains_are_rated_answer_by_answer(server):
    server.replies = [rated(GOOD)]
    judge = ChatJudge(endpoint=server.endpoint(), model="judge")
    task, style = UltrafeedbackTask(mode="online", judge=judge), MultiAnswer(3)
    row = task.row_from_ground_truth("r", {"instruction": "Say hello."})
    texts = style.parse(task, style.render(task, ["hello", " ", "hi"]))
    assert score_answers(task, row, texts, deduplicate=False).matrix == [
        REWARDS,
        [0.0] * 4,
        REWARDS,
    ]
    assert len(server.requests) == 2, "a blank answer needs no judge"


def test_a_failed_try_is_repeated(server):
    server.replies = [send({}, 503), send(b"not JSON"), rated(GOOD)]
    judge = ChatJudge(endpoint=server.endpoint(tries=3), model="judge")
    assert judge.rate("i", "a") == REWARDS
    assert judge.endpoint.counts == {"requests": 3}


def test_a_reply_without_end_is_cut(server):
    server.replies = [pour]
    judge = ChatJudge(endpoint=server.endpoint(tries=1), model="judge")
    assert judge.rate("i", "a") == [0.0] * 4
    assert sum(judge.counts.values()) == 2


def test_a_cache_that_cannot_be_written_costs_nothing_but_a_warning(server, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    server.replies = [rated(GOOD)]
    endpoint = server.endpoint(cache=str(tmp_path / "file" / "below"))
    judge = ChatJudge(endpoint=endpoint, model="judge")
    assert judge.rate("i", "a") == judge.rate("i", "a") == REWARDS
    assert endpoint.counts == {"requests": 2, "not_cached": 2}
    assert caplog.text.count("task.judge.endpoint.cache=") == 1


def test_what_the_judge_said_is_the_explanation(server):
    server.replies = [rated(GOOD), rated("no")]
    judge = ChatJudge(endpoint=server.endpoint(tries=1), model="judge")
    task = UltrafeedbackTask(mode="online", judge=judge)
    row = task.rows("train")[0]
    first, second = (judge_answer(task, row, "a", explain=True) for _ in range(2))
    assert first.explanation.startswith("the judge says instruction_following 5, honesty 3")
    assert second.explanation == "not rated: no four ratings from 1 to 5 in the reply"


@pytest.mark.parametrize(
    ("reply", "kind", "requests"),
    [
        (send({}, 500), "failed_refused", 2),
        (send({}, 401), "failed_refused", 1),
        (send(b"<html>"), "failed_unreadable", 2),
        (rated("I would say 5."), "failed_unreadable", 1),
        (rated('{"instruction_following": 7}'), "failed_unreadable", 1),
        (send({"choices": []}), "failed_unreadable", 1),
        (send([1]), "failed_unreadable", 1),
        (drip, "failed_unreachable", 2),
        (drip_headers, "failed_unreachable", 2),
        (cut, "failed_unreadable", 2),
        (babble, "failed_unreachable", 2),
        (send(b"[" * 100_000), "failed_unreadable", 2),
        (send({}, 307), "failed_refused", 1),
        (rated(GOOD.replace("5", "NaN")), "failed_unreadable", 1),
        (send({"choices": [{"message": {"content": None}}]}), "failed_unreadable", 1),
    ],
)
def test_an_answer_that_cannot_be_rated_gets_the_declared_value_and_is_counted(
    server, reply, kind, requests, caplog
):
    server.replies = [reply]
    endpoint = server.endpoint(tries=2, timeout=0.3)
    judge = ChatJudge(endpoint=endpoint, model="judge", failure_value=0.1)
    started = time.perf_counter()
    assert judge.rate("i", "a") == [0.1] * 4
    assert time.perf_counter() - started < 3
    assert judge.counts == {"ratings": 1, kind: 1}
    assert len(server.requests) == requests
    assert "could not rate" in caplog.text


def test_a_server_that_is_gone_costs_the_declared_value(server):
    endpoint = server.endpoint(tries=2)
    server.http.server_close()
    judge = ChatJudge(endpoint=endpoint, model="judge")
    assert judge.rate("i", "a") == [0.0] * 4
    assert judge.counts["failed_unreachable"] == 1


def test_replies_are_kept_on_disk_and_only_good_ones(server, tmp_path):
    server.replies = [rated("no ratings"), rated(GOOD), send({}, 500)]
    settings = {"cache": str(tmp_path / "judge"), "tries": 1}
    judge = ChatJudge(endpoint=server.endpoint(**settings), model="judge")
    assert judge.rate("i", "a") == [0.0] * 4
    assert judge.rate("i", "a") == REWARDS
    assert judge.rate("i", "a") == REWARDS
    assert len(server.requests) == 2
    later = ChatJudge(endpoint=server.endpoint(**settings), model="judge")
    assert later.rate("i", "a") == REWARDS
    assert later.endpoint.counts == {"cached": 1}
    assert later.rate("i", "another answer") == [0.0] * 4
    other = ChatJudge(endpoint=server.endpoint(**settings), model="other")
    assert other.rate("i", "a") == [0.0] * 4, "another model has replies of its own"
    (kept,) = (tmp_path / "judge").rglob("*.*")
    assert kept.suffix == ".json"


def test_a_damaged_file_of_the_cache_is_replaced(server, tmp_path):
    server.replies = [rated(GOOD)]
    judge = ChatJudge(endpoint=server.endpoint(cache=str(tmp_path)), model="judge")
    judge.rate("i", "a")
    (kept,) = tmp_path.rglob("*.json")
    kept.write_text(kept.read_text()[:10])
    assert judge.rate("i", "a") == REWARDS
    assert judge.endpoint.counts == {"requests": 2, "cache_damaged": 1}
    assert judge.rate("i", "a") == REWARDS
    assert judge.endpoint.counts["cached"] == 1


@pytest.mark.parametrize(
    "values", [[9, 0.5, -3, 0.25, 2], [[0, 0, 0, 0, 0], [9, 0.5, -3, 0.25, 2]]]
)
def test_a_reward_model_is_asked_for_its_outputs(server, values):
    server.replies = [send({"data": [{"data": values}]})]
    judge = RewardModelJudge(
        endpoint=server.endpoint(), model="rm", outputs=[4, 1, 2, 3], highest=2.0
    )
    assert judge.rate("i", "a") == [1.0, 0.25, 0.0, 0.125]
    path, body, _ = server.requests[0]
    assert path == "/v1/pooling"
    assert [message["role"] for message in body["messages"]] == ["user", "assistant"]


@pytest.mark.parametrize(
    "reply",
    [
        {"data": []},
        {"data": [{"data": [1]}]},
        {"data": [{"data": "x"}]},
        {"data": [{"data": [1, 2, 3, float("nan")]}]},
        3,
    ],
)
def test_outputs_that_are_missing_are_counted(server, reply):
    server.replies = [send(reply)]
    judge = RewardModelJudge(endpoint=server.endpoint(), model="rm")
    assert judge.rate("i", "a") == [0.0] * 4
    assert judge.counts["failed_unreadable"] == 1


def test_settings_that_cannot_work_are_refused(monkeypatch):
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    endpoint = Endpoint(url="http://localhost:1/v1")
    judge = ChatJudge(endpoint=endpoint, model="x")
    for make, key in [
        (lambda: UltrafeedbackTask(mode="other"), "task.mode='other'"),
        (lambda: UltrafeedbackTask(mode="online"), "task.mode=online needs a judge"),
        (lambda: UltrafeedbackTask(judge=judge), "task.mode=offline uses no judge"),
        (lambda: Endpoint(url="localhost:8000"), "task.judge.endpoint.url='localhost:8000'"),
        (lambda: Endpoint(url="http://a", timeout=0), "task.judge.endpoint.timeout=0"),
        (lambda: Endpoint(url="http://a", tries=0), "task.judge.endpoint.tries=0"),
        (lambda: Endpoint(url="http://a", key_variable="JUDGE_KEY"), "key_variable=JUDGE_KEY"),
        (lambda: ChatJudge(endpoint=endpoint, model="x", failure_value=2.0), "failure_value=2"),
        (
            lambda: RewardModelJudge(endpoint=endpoint, model="x", outputs=[0]),
            "task.judge.outputs=[0]",
        ),
        (lambda: RewardModelJudge(endpoint=endpoint, model="x", lowest=2.0), "task.judge.lowest=2"),
    ]:
        with pytest.raises(ConfigError) as caught:
            make()
        assert key in str(caught.value)
