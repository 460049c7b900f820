import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpo_lightning.errors import ConfigError
from vpo_lightning.prompting import GoalConditioned, MultiAnswer, SingleAnswer
from vpo_lightning.scoring import score_answers
from vpo_lightning.tasks.eureqa.task import LETTERS, EureqaTask, parse_names

ROOT = Path(__file__).parents[2]
REAL = Path(os.environ.get("VPO_REAL_DATA", ROOT.parent / "shared"))
AUTHORED = ROOT / "tasks" / "eureqa" / "data"
CASES = json.loads((ROOT / "tests" / "golden" / "eureqa.json").read_text())["cases"]
TASK = EureqaTask()
TOLERANCE = 1e-9  # the reference computes in float64 too


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if "raises" not in case["expected"]],
    ids=lambda case: case["category"],
)
def test_rewards_equal_the_golden_values(case):
    single = case["mode"] == "single"
    style = SingleAnswer() if single else MultiAnswer(case["m"])
    row = TASK.row_from_ground_truth(case["id"], case["ground_truth"])
    texts = style.parse(TASK, case["text"]) if case["text"] is not None else [None] * case["m"]
    scored = score_answers(TASK, row, texts)
    expected = case["expected"]
    matrix = [expected["sub_scores"]] if single else expected["sub_scores"]
    np.testing.assert_allclose(scored.matrix, matrix, atol=TOLERANCE, rtol=0)
    assert TASK.set_scalar(scored.matrix, row) == pytest.approx(expected["scalar"], abs=TOLERANCE)
    assert single or scored.num_parsed == expected["num_parsed"]


def written(names: list[str]) -> str:
    pairs = zip(LETTERS, names, strict=False)
    return "\n".join(f"<entity_{letter}>{name}</entity_{letter}>" for letter, name in pairs)


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_gold_names_of_the_authored_stories_score_one(split):
    rows = TASK.rows(split)
    assert len(rows) == 8
    for row in rows:
        gold = row.ground_truth["chain_entities"]
        assert TASK.score(written(gold), row) == [1.0] * 5
        assert (
            TASK.score(written([name.replace("_", " ").upper() for name in gold]), row) == [1.0] * 5
        )
        assert TASK.score(written(gold[1:]), row)[4] == 0.0
    assert not {row.prompt for row in TASK.rows("train")} & {r.prompt for r in TASK.rows("test")}


def test_no_story_gives_a_masked_name_away():
    for split in ("train", "test"):
        for row in TASK.rows(split):
            story = row.prompt.split("Story:\n")[1].split("Find out")[0].lower()
            for name in row.ground_truth["chain_entities"]:
                plain = name.replace("_", " ").split(" (")[0].split(",")[0].lower()
                assert f" {plain} " not in f" {story} ", (row.id, name)


@given(st.text())
def test_no_text_breaks_the_scoring(text):
    row = TASK.rows("train")[0]
    for answer in (text, written([text] * 5)):
        assert set(TASK.score(answer, row)) <= {0.0, 1.0}
        assert TASK.is_parsed(answer) or not any(TASK.score(answer, row))


def test_names_are_read_from_the_first_tag_of_each_letter_in_any_case():
    text = "<Entity_a> x </ENTITY_A><entity_A>y</entity_A><entity_B>open <entity_C>z</entity_C>"
    assert parse_names(text) == ["x", "", "z", "", ""]


def test_each_prompt_shows_the_form_once():
    row = TASK.rows("train")[0]
    for style, weights in (
        (SingleAnswer(), None),
        (MultiAnswer(5), None),
        (GoalConditioned(), [0.2] * 5),
    ):
        (message,) = style.messages(TASK, row, weights)
        assert message["content"].count("<entity_A>") == 1
        assert "A: Person A" in message["content"]


def test_the_splits_are_normal_plus_a_part_of_hard_and_the_rest_of_hard():
    paths = {
        "hard_path": str(AUTHORED / "train.jsonl"),
        "normal_path": str(AUTHORED / "test.jsonl"),
    }
    task = EureqaTask(hard_train_rows=5, **paths)  # type: ignore[arg-type]
    train, test = task.rows("train"), task.rows("test")
    order = np.random.default_rng(0).permutation(8)
    ids = [f"hard-{i + 1}" for i in order]
    assert [row.id for row in train] == [*(f"normal-{i}" for i in range(1, 9)), *ids[:5]]
    assert [row.id for row in test] == ids[5:]
    assert not {row.prompt for row in train} & {row.prompt for row in test}


def test_the_published_numbers_of_rows_come_out(tmp_path):
    line = (AUTHORED / "train.jsonl").read_text().splitlines()[0]
    (tmp_path / "hard.jsonl").write_text((line + "\n") * 1363)
    (tmp_path / "normal.jsonl").write_text((line + "\n") * 428)
    task = EureqaTask(
        hard_path=str(tmp_path / "hard.jsonl"), normal_path=str(tmp_path / "normal.jsonl")
    )
    assert len(task.rows("train")) == 1109
    assert len(task.rows("test")) == 682


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(ConfigError, match=r"task\.normal_path=null: expected a file"):
        EureqaTask(hard_path="a.jsonl")
    both = str(AUTHORED / "train.jsonl")
    with pytest.raises(ConfigError, match=r"task\.hard_train_rows=681: expected less than the 8"):
        EureqaTask(hard_path=both, normal_path=both).check()
    with pytest.raises(ConfigError, match=r"task\.hard_path=gone\.jsonl: there is no such file"):
        EureqaTask(hard_path="gone.jsonl", normal_path=both).check()


def test_short_chains_are_left_out_and_malformed_rows_refused(tmp_path):
    lines = (AUTHORED / "train.jsonl").read_text().splitlines()
    short = json.loads(lines[0])
    short["entities"] = short["entities"][:5]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join([json.dumps(short), *lines[1:]]))
    rows = EureqaTask(train_path=str(path)).rows("train")
    assert len(rows) == 7
    assert rows.counts == {"rows: fewer than 6 masks or entities": 1}  # type: ignore[attr-defined]
    path.write_text(json.dumps(json.loads(lines[0]) | {"question": "one string"}))
    with pytest.raises(ConfigError, match=r"row 1 \(task\.train_path\): field question is 'one"):
        EureqaTask(train_path=str(path)).check()


def test_files_of_the_reference_implementation_are_read(tmp_path):
    row = {
        "data_source": "eureqa",
        "prompt": [{"role": "user", "content": "Who?\n\nFor each masked entity above, ..."}],
        "reward_model": {"ground_truth": {"chain_entities": ["A_(band)", "B", "C", "D", "E"]}},
    }
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    (read,) = EureqaTask(test_path=str(tmp_path / "a.jsonl")).rows("test")
    assert read.prompt == "Who?"
    assert TASK.score(written(["a band", "b", "c", "d", "x"]), read) == [1, 1, 1, 1, 0]


@pytest.mark.real_data
@pytest.mark.skipif(not REAL.is_dir(), reason="needs VPO_REAL_DATA")
def test_rows_in_the_schema_of_the_data_set_are_read():
    path = REAL / "data" / "eureqa" / "authored_6.jsonl"
    assert len(EureqaTask(train_path=str(path)).rows("train")) == 6
