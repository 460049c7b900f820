import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpo_lightning.errors import ConfigError
from vpo_lightning.prompting import GoalConditioned, MultiAnswer, SingleAnswer
from vpo_lightning.scoring import score_answers
from vpo_lightning.tasks.musique.rewards import parse_cited_answer, reward_vector
from vpo_lightning.tasks.musique.task import MusiqueTask

ROOT = Path(__file__).parents[2]
REAL = Path(os.environ.get("VPO_REAL_DATA", ROOT.parent / "shared"))
AUTHORED = ROOT / "tasks" / "musique" / "data"
TASK = MusiqueTask()
TOLERANCE = 1e-9  # the reference computes in float64 too


def cases(folder: Path, real: bool) -> list[dict]:
    found = json.loads((folder / "musique.json").read_text())["cases"]
    return [case for case in found if ("real" in case["id"]) == real]


def check_case(case: dict) -> None:
    style = MultiAnswer(case["m"]) if case["mode"] == "multi" else SingleAnswer()
    row = TASK.row_from_ground_truth(case["id"], case["ground_truth"])
    scored = score_answers(TASK, row, style.parse(TASK, case["text"]))
    expected = case["expected"]
    single = case["mode"] == "single"
    matrix = [expected["sub_scores"]] if single else expected["sub_scores"]
    np.testing.assert_allclose(scored.matrix, matrix, atol=TOLERANCE, rtol=0)
    assert TASK.set_scalar(scored.matrix, row) == pytest.approx(expected["scalar"], abs=TOLERANCE)
    assert single or scored.num_parsed == expected["num_parsed"]


@pytest.mark.parametrize(
    "case",
    [c for c in cases(ROOT / "tests" / "golden", False) if "raises" not in c["expected"]],
    ids=lambda case: case["category"],
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


def test_a_superscript_digit_is_skipped_where_the_reference_raises():
    answer = parse_cited_answer("<support>3, ²</support><answer>Paris</answer>")
    assert answer.cited == (3,)
    assert reward_vector(answer, [3, 7], ["Paris"]) == [1, 0, 1, 1, 1]


def test_citations_of_any_length_are_read():
    answer = parse_cited_answer(f"<support>{'9' * 10_000}, 3</support><answer>x</answer>")
    assert answer.cited == (-1, 3)


def test_citing_everything_earns_only_the_first_four():
    everything = ",".join(map(str, range(20)))
    answer = parse_cited_answer(f"<support>{everything}</support><answer>x</answer>")
    assert reward_vector(answer, [0, 5, 11, 19], ["x"]) == [1, 0, 0, 0, 1]


@given(st.text())
def test_no_text_breaks_the_scoring(text):
    row = TASK.rows("train")[0]
    tagged = f"<support>{text}</support><answer>{text}</answer>"
    for answer in (text, tagged):
        rewards = TASK.score(answer, row)
        assert len(rewards) == 5
        assert all(0 <= reward <= 1 for reward in rewards)
        assert TASK.is_parsed(answer) or not any(rewards)


@given(st.permutations([3, 7, 8]))
def test_the_order_of_citations_does_not_matter(cited):
    answer = parse_cited_answer(
        f"<support>{', '.join(map(str, cited))}</support><answer>x</answer>"
    )
    assert reward_vector(answer, [7, 3], ["x"]) == [1, 1, 1, 1, 1]


def gold_answer(row) -> str:
    support = ", ".join(map(str, row.ground_truth["supporting_indices_ordered"]))
    return f"<support>{support}</support>\n<answer>{row.ground_truth['answer']}</answer>"


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_gold_answers_of_the_authored_questions_score_one(split):
    rows = TASK.rows(split)
    assert len(rows) >= 8
    assert {row.ground_truth["num_hops"] for row in rows} == {2, 3, 4}
    for row in rows:
        assert TASK.score(gold_answer(row), row) == [1.0] * 5
    assert not {row.prompt for row in TASK.rows("train")} & {r.prompt for r in TASK.rows("test")}


def test_each_prompt_shows_the_form_once():
    row = TASK.rows("train")[0]
    for style, weights in (
        (SingleAnswer(), None),
        (MultiAnswer(3), None),
        (GoalConditioned(), [0.2] * 5),
    ):
        (message,) = style.messages(TASK, row, weights)
        assert message["content"].count("<support>") == 1
        assert row.prompt in message["content"]
    assert "citing the paragraph of the first step of the reasoning 20%" in message["content"]


def test_a_written_chain_is_read_back():
    row, style = TASK.rows("train")[0], MultiAnswer(3)
    answers = [gold_answer(row), "<answer>x</answer>", "<support>1</support><answer>y</answer>"]
    assert style.parse(TASK, style.render(TASK, answers)) == answers


def reference_row(question: str, instruction: str, truth: object, source: str = "musique") -> dict:
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": f"{question}\n\n{instruction}"}],
        "ability": "reasoning",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"index": 0},
    }


TRUTH = {
    "answer": "Paris",
    "answer_aliases": ["City of Paris"],
    "supporting_indices_ordered": [3, 7],
    "num_hops": 2,
}


@pytest.mark.parametrize("truth", [TRUTH, json.dumps(TRUTH)], ids=["object", "text"])
@pytest.mark.parametrize(
    "instruction",
    ["First reason about which of them ...", "Give 3 different answers in <response_i> tags."],
)
def test_files_of_the_reference_implementation_are_read(tmp_path, truth, instruction):
    path = tmp_path / "train.parquet"
    pq.write_table(pa.Table.from_pylist([reference_row("Where?", instruction, truth)]), path)
    task = MusiqueTask(train_path=str(path))
    (row,) = task.rows("train")
    assert row.prompt == "Where?"
    assert task.score("<support>7,3</support><answer>city of paris</answer>", row) == [1.0] * 5


def write_row(path: Path, **changes: object) -> str:
    row = json.loads((AUTHORED / "train.jsonl").read_text().splitlines()[0]) | changes
    path.write_text(json.dumps({k: v for k, v in row.items() if v != "absent"}) + "\n")
    return str(path)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"answer": "absent"}, "field answer is missing"),
        ({"answer": 3}, "field answer is 3; expected text"),
        ({"paragraphs": [{"idx": 0}]}, r"field paragraphs\[0\]\.title is missing"),
        ({"answer_aliases": "x"}, "field answer_aliases is 'x'; expected a list"),
        (
            {"question_decomposition": [{"paragraph_support_idx": 99}]},
            r"question_decomposition\[0\]\.paragraph_support_idx is 99; no paragraph",
        ),
        (
            {"question_decomposition": [{"paragraph_support_idx": None}]},
            r"question_decomposition\[0\]\.paragraph_support_idx is None; expected a whole number",
        ),
    ],
)
def test_a_malformed_row_names_file_row_field_and_key(tmp_path, changes, problem):
    path = write_row(tmp_path / "a.jsonl", **changes)
    with pytest.raises(ConfigError, match=rf"a\.jsonl, row 1 \(task\.test_path\): .*{problem}"):
        MusiqueTask(test_path=path).check()


def test_rows_of_another_task_and_unknown_instructions_are_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(reference_row("Where?", "First reason about which", TRUTH, "maze")))
    with pytest.raises(ConfigError, match="field data_source is 'maze'; expected musique"):
        MusiqueTask(train_path=str(path)).check()
    path.write_text(json.dumps(reference_row("Where?", "Own words.", TRUTH)))
    with pytest.raises(ConfigError, match=r"set task\.instruction_start"):
        MusiqueTask(train_path=str(path)).check()
    task = MusiqueTask(train_path=str(path), instruction_start="Own words")
    assert task.rows("train")[0].prompt == "Where?"


def test_questions_without_an_answer_are_left_out_and_counted(tmp_path):
    lines = (AUTHORED / "train.jsonl").read_text().splitlines()
    unanswerable = json.loads(lines[0]) | {"answerable": False}
    (tmp_path / "a.jsonl").write_text("\n".join([json.dumps(unanswerable), *lines[1:]]))
    rows = MusiqueTask(train_path=str(tmp_path / "a.jsonl")).rows("train")
    assert len(rows) == len(lines) - 1
    assert rows.counts == {"rows: not answerable": 1}  # type: ignore[attr-defined]


def test_the_stratified_split_takes_as_many_of_each_hop_count():
    rows = MusiqueTask(test_per_hop=2).rows("test")
    hops = [row.ground_truth["num_hops"] for row in rows]
    assert sorted(hops) == [2, 2, 3, 3, 4, 4]
    assert [row.id for row in MusiqueTask(test_per_hop=2).rows("test")] == [row.id for row in rows]
    with pytest.raises(ConfigError, match=r"task\.test_per_hop=3: .* only 2 of 4 hops"):
        MusiqueTask(test_per_hop=3).rows("test")


def test_the_stratified_split_is_the_published_one():
    datasets = pytest.importorskip("datasets")
    rows = TASK.rows("test")
    whole = datasets.Dataset.from_list(
        [{"id": row.id, "hops": row.ground_truth["num_hops"]} for row in rows]
    )
    parts = [
        whole.select([i for i, h in enumerate(whole["hops"]) if h == count]).shuffle(seed=42)
        for count in (2, 3, 4)
    ]
    published = datasets.concatenate_datasets([part.select(range(2)) for part in parts])
    expected = list(published.shuffle(seed=42)["id"])
    assert [row.id for row in MusiqueTask(test_per_hop=2).rows("test")] == expected


@pytest.mark.real_data
@pytest.mark.skipif(not REAL.is_dir(), reason="needs VPO_REAL_DATA")
def test_published_rows_are_read_and_their_gold_answers_score_one():
    path = REAL / "data" / "musique" / "musique_ans_train_100.jsonl"
    task = MusiqueTask(train_path=str(path), test_path=str(path))
    rows = task.rows("train")
    assert len(rows) == 100
    assert [sum(r.ground_truth["num_hops"] == n for r in rows) for n in (2, 3, 4)] == [68, 27, 5]
    for row in rows:
        assert task.score(gold_answer(row), row) == [1.0] * 5
