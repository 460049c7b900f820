import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpo_lightning.errors import ConfigError
from vpo_lightning.prompting import GoalConditioned, MultiAnswer, SingleAnswer
from vpo_lightning.scoring import score_answers
from vpo_lightning.tasks.toolrl.calls import ToolCall, parse_tool_answer
from vpo_lightning.tasks.toolrl.rewards import align, reward_vector, value_match
from vpo_lightning.tasks.toolrl.task import ToolrlTask

ROOT = Path(__file__).parents[2]
REAL = Path(os.environ.get("VPO_REAL_DATA", ROOT.parent / "shared"))
AUTHORED = ROOT / "tasks" / "toolrl" / "data"
TASK = ToolrlTask()
TOLERANCE = 1e-9  # the reference computes in float64 too


def cases(folder: Path, real: bool) -> list[dict]:
    found = json.loads((folder / "tool.json").read_text())["cases"]
    return [case for case in found if ("real" in case["id"]) == real]


def check_case(case: dict) -> None:
    single = case["mode"] == "single"
    style = SingleAnswer() if single else MultiAnswer(case["m"])
    row = TASK.row_from_ground_truth(case["id"], case["ground_truth"])
    is_text = isinstance(case["text"], str)
    texts = style.parse(TASK, case["text"]) if is_text else [None] * style.num_answers
    scored = score_answers(TASK, row, texts)
    expected = case["expected"]
    matrix = [expected["sub_scores"]] if single else expected["sub_scores"]
    np.testing.assert_allclose(scored.matrix, matrix, atol=TOLERANCE, rtol=0)
    assert TASK.set_scalar(scored.matrix, row) == pytest.approx(expected["scalar"], abs=TOLERANCE)
    assert single or scored.num_parsed == expected["num_parsed"]


@pytest.mark.parametrize(
    "case", cases(ROOT / "tests" / "golden", False), ids=lambda case: case["category"]
)
def test_rewards_equal_the_golden_values(case):
    check_case(case)


@pytest.mark.real_data
@pytest.mark.skipif(not REAL.is_dir(), reason="needs VPO_REAL_DATA")
def test_rewards_of_published_rows_equal_the_golden_values():
    found = cases(REAL / "golden", True)
    assert found
    for case in found:
        check_case(case)


@pytest.mark.real_data
@pytest.mark.skipif(not REAL.is_dir(), reason="needs VPO_REAL_DATA")
def test_gold_answers_are_parsed_as_the_golden_values_say():
    for case in json.loads((REAL / "golden" / "tool_gold_parsing.json").read_text())["cases"]:
        answer, expected = parse_tool_answer(case["raw"]), case["expected"]
        calls = [{"name": c.name, "parameters": c.arguments} for c in answer.calls]
        assert calls == expected["tool_calls"]
        assert (answer.think, answer.response) == (
            expected["think_text"],
            expected["response_text"],
        )


def gold_texts(path: Path, records: list[dict] | None = None) -> list[str]:
    rows = records or [json.loads(line) for line in path.read_text().splitlines()]
    return [row["reward_model"]["ground_truth"] for row in rows]


@pytest.mark.real_data
@pytest.mark.skipif(not REAL.is_dir(), reason="needs VPO_REAL_DATA")
def test_the_gold_answers_of_the_official_test_rows_score_one():
    import pyarrow.parquet as pq

    folder = REAL / "data" / "toolrl"
    train = folder / "train_derived_from_sft_160.parquet"
    task = ToolrlTask(test_path=str(folder / "test.parquet"), train_path=str(train))
    assert len(task.rows("train")) == 160
    rows, gold = (
        task.rows("test"),
        gold_texts(Path(), pq.read_table(folder / "test.parquet").to_pylist()),
    )
    assert len(rows) == 80
    for row, answer in zip(rows, gold, strict=True):
        assert task.score(answer, row) == [1.0, 1.0, 1.0, 1.0]
        assert "**Available Tools**" in (row.system_prompt or "")


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_gold_answers_of_the_authored_dialogues_score_one(split):
    rows, gold = TASK.rows(split), gold_texts(AUTHORED / f"{split}.jsonl")
    assert any(row.ground_truth["tool_calls_json"] == "[]" for row in rows)
    for row, answer in zip(rows, gold, strict=True):
        assert TASK.score(answer, row) == [1.0] * 4
    others = [TASK.score(gold[0], row) for row in rows[1:]]
    assert all(rewards != [1.0] * 4 for rewards in others)


# Parsing


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ('{"name": "a"} {"name": "b"}', ["a", "b"]),
        ('[{"name": "a"}, 3, {"name": "b"}]', ["a", "b"]),
        ('[{"name": "a"}] trailing', []),
        ('{"name": "a"} oops {"name": "b"}', ["a"]),
        ('{"name": "a"', []),
        ('text {"name": "a"}', []),
        ("{" * 100_000, []),
        ("[" * 100_000, []),
        ('{"name": ' + "9" * 5000 + "}", []),
        ('{"parameters": {}}', [""]),
    ],
)
def test_calls_are_read_up_to_the_first_fault(body, names):
    answer = parse_tool_answer(f"<tool_call>{body}</tool_call>")
    assert [call.name for call in answer.calls] == names
    assert answer.has_call_text


def test_deeply_nested_arguments_are_scored():
    for depth in (400, 900, 990):
        nested = "[" * depth + "]" * depth
        call_text = f'{{"name": "f", "parameters": {{"a": {nested}}}}}'
        text = f"<think>x</think><tool_call>{call_text}</tool_call>"
        row = TASK.row_from_ground_truth(
            "r", {"tool_calls": [{"name": "f", "parameters": {"a": "x"}}]}
        )
        rewards = TASK.score(text, row)
        assert all(0 <= reward <= 1 for reward in rewards)


@given(st.text())
def test_no_text_breaks_the_scoring(text):
    row = TASK.rows("train")[0]
    for answer in (text, f"<think></think><tool_call>{text}</tool_call>"):
        assert all(0 <= reward <= 1 for reward in TASK.score(answer, row))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(JSON, JSON)
def test_no_value_breaks_the_match(predicted, gold):
    assert 0 <= value_match(predicted, gold) <= 1


@given(JSON.filter(lambda value: value == value and "nan" not in repr(value)))
def test_a_value_matches_itself(value):
    assert value_match(value, value) == 1


# Matching


@pytest.mark.parametrize(
    ("predicted", "gold", "match"),
    [
        ("false", True, 1.0),  # text that is not empty is true
        (None, False, 1.0),
        (0, True, 0.0),
        (True, "no", 1.0),
        (False, "False", 0.0),
        (True, 5, 1.0),
        ("3", 3, 1.0),
        ("three", 3, 0.0),
        (" 3.0 ", 3, 1.0),
        (None, 3, 0.0),
        (10**400, 1.5, 0.0),
        ("1e999", 10**400, 0.0),
        ("a1", ["a1", "b2"], 2 / 3),
        ([1, 2, 2], [2, 1, 3], 2 / 3),
        ("x", {"k": 1}, 0.0),
        ({"k": 2, "l": 1}, {"k": 1}, 2 / 3),
        ("the New York", "New York", 0.8),
        (["New York"], "New York", 1.0),
        (7, "7", 1.0),
    ],
)
def test_values_match_by_the_type_of_the_gold_one(predicted, gold, match):
    assert value_match(predicted, gold) == pytest.approx(match, abs=TOLERANCE)


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall(name, arguments)


def test_calls_are_aligned_by_name_before_keys():
    predicted = [call("g", a=1, b=2, c=3), call("f", a=1)]
    gold = [call("F", a=1, b=2, c=3), call("h")]
    assert align(predicted, gold) == [(predicted[1], gold[0]), (predicted[0], gold[1])]


def test_a_call_left_over_on_either_side_counts_as_a_pair_of_zero():
    one, two = call("f", a=1), call("g", b=1)
    for predicted, gold in (([one, two], [one]), ([one], [one, two])):
        answer = parse_tool_answer(
            "<think></think><tool_call>"
            + json.dumps([{"name": c.name, "parameters": c.arguments} for c in predicted])
            + "</tool_call>"
        )
        layout, names, keys, values = reward_vector(answer, gold)
        assert (layout, keys, values) == (1.0, 0.5, 0.5)
        assert names == pytest.approx(2 / 3)


# Prompts and prefill


def test_each_prompt_leaves_the_form_to_the_system_message():
    row = TASK.rows("train")[0]
    for style, weights in (
        (SingleAnswer(), None),
        (MultiAnswer(3), None),
        (GoalConditioned(), [0.25] * 4),
    ):
        system, user = style.messages(TASK, row, weights)
        assert system == {"role": "system", "content": row.system_prompt}
        assert system["content"].count("<think>") == 1
        assert "<think>" not in user["content"]
    chain = MultiAnswer(3)
    answers = gold_texts(AUTHORED / "train.jsonl")[:3]
    assert chain.parse(TASK, chain.render(TASK, answers)) == answers


PREFILL = "<think>\n\n</think>\n\n"
ARGUMENTS = '{"city": "Oslo", "days": 3, "metric": true}'
CALL = f'<tool_call>{{"name": "get_weather", "parameters": {ARGUMENTS}}}</tool_call>'


def test_a_prefilled_think_block_counts_in_a_single_answer_only():
    task = ToolrlTask(prefill=PREFILL)
    row = task.rows("train")[0]

    def rewards(style, text: str, by: ToolrlTask) -> list[list[float]]:
        return score_answers(by, row, style.parse(by, text)).matrix

    assert rewards(SingleAnswer(), CALL, TASK) == [[0, 1, 1, 1]]
    assert rewards(SingleAnswer(), CALL, task) == [[1, 1, 1, 1]]
    chain = f"<response_1>{CALL}</response_1>"
    assert rewards(MultiAnswer(1), chain, task) == [[0, 1, 1, 1]]
    silent = TASK.row_from_ground_truth("r", {"tool_calls_json": "[]"})
    assert score_answers(task, silent, SingleAnswer().parse(task, " \n")).matrix == [[0.0] * 4]


def test_answers_with_the_same_calls_vote_alike():
    def vote(thought: str, call: str) -> str | None:
        return TASK.vote(f"<think>{thought}</think><tool_call>{call}</tool_call>")

    one = vote("a", '{"name": "f", "parameters": {"x": 1, "y": [2]}}')
    assert vote("b", '{"name": "f", "arguments": {"y": [2], "x": 1}}') == one
    assert vote("a", '{"name": "f", "parameters": {"x": 1}}') != one
    said = TASK.vote("<think>a</think><response>b</response>")
    assert said is not None
    assert said == TASK.vote("<response>c</response>")
    assert TASK.vote(" \n") is None
    for depth in (900, 985, 990, 995, 5000):  # some can be read and not be written
        vote("a", '{"name": "f", "parameters": {"x": ' + "[" * depth + "]" * depth + "}}")


# Files


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"prompt": [{"role": "user", "content": "x"}]}, "field prompt has no system message"),
        ({"prompt": "x"}, "field prompt is 'x'; expected a list"),
        ({"prompt": []}, "field prompt is empty"),
        ({"prompt": [{"role": "system"}]}, r"field prompt\[0\]\.content is missing"),
        (
            {
                "prompt": [
                    {"role": role, "content": "x"} for role in ("system", "user", "assistant")
                ]
            },
            "field prompt has messages of system, user, assistant; expected one of the user",
        ),
        ({"reward_model": {}}, r"field reward_model\.ground_truth is missing"),
        ({"reward_model": {"ground_truth": "{cut"}}, r"reward_model\.ground_truth is not JSON"),
        ({"reward_model": {"ground_truth": {}}}, r"ground_truth\.tool_calls_json is missing"),
        (
            {"reward_model": {"ground_truth": {"tool_calls_json": "[{"}}},
            r"ground_truth\.tool_calls_json is no JSON list of calls",
        ),
        ({"data_source": "maze"}, "field data_source is 'maze'; expected rlla or tool"),
    ],
)
def test_a_malformed_row_names_file_row_field_and_key(tmp_path, change, problem):
    lines = (AUTHORED / "train.jsonl").read_text().splitlines()
    bad = json.dumps(json.loads(lines[1]) | change)
    (tmp_path / "a.jsonl").write_text("\n".join([lines[0], bad]))
    with pytest.raises(ConfigError, match=rf"a\.jsonl, row 2 \(task\.train_path\): .*{problem}"):
        ToolrlTask(train_path=str(tmp_path / "a.jsonl")).check()


@pytest.mark.slow
def test_ten_thousand_answers_are_scored_within_ten_seconds():
    rows, gold = TASK.rows("train"), gold_texts(AUTHORED / "train.jsonl")
    kept = list(rows)
    started = time.perf_counter()
    for i in range(10_000):
        score_answers(TASK, kept[i % 12], SingleAnswer().parse(TASK, gold[(i * 7) % 12]))
    assert time.perf_counter() - started < 10
