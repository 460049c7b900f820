import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.task_layer.toy import VectorTask
from vpo_lightning.errors import ConfigError
from vpo_lightning.scoring import RewardVector, score_answers
from vpo_lightning.task import Objective

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden" / "text_and_parsing.json").read_text(encoding="utf-8")
)["dedup_pad"]
TASK = VectorTask()
ROW = TASK.rows("train")[0]
SLOTS = st.lists(st.sampled_from([None, "", "x", "[1,0]", "[1, 0]", "[0,1]", "[0,0]"]), max_size=6)


def slots_of(case: dict) -> list[str | None]:
    """The matrix as answers of a chain: m slots, or more where the case has more rows."""
    texts: list[str | None] = [json.dumps(row) for row in case["matrix"]]
    return texts + [None] * (case["m"] - len(texts))


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: json.dumps(case["matrix"]))
def test_golden_duplicates_are_removed_and_rows_padded(case):
    texts = slots_of(case)
    # Parsing never gives more than m slots; the reference cuts more rows off after this step.
    assert score_answers(TASK, ROW, texts).matrix[: case["m"]] == case["dedup_then_pad"]
    kept = score_answers(TASK, ROW, texts[: case["m"]], deduplicate=False)
    assert kept.matrix == case["pad"]
    written = texts[: len(case["matrix"])]
    unpadded = score_answers(VectorTask(pads_answers=False), ROW, written)
    assert unpadded.matrix == case["dedup"]


def test_an_unparsed_answer_keeps_a_zero_row_in_its_place():
    scored = score_answers(TASK, ROW, ["prose", "[1, 0]", None, "[0, 1]"])
    assert scored.matrix == [[0, 0], [1, 0], [0, 1], [0, 0]]
    assert [a.is_parsed for a in scored.answers] == [False, True, False, True]
    assert scored.num_parsed == 2


def test_a_task_can_drop_unparsed_answers_instead():
    task = VectorTask(drops_unparsed=True)
    scored = score_answers(task, ROW, ["prose", "[1, 0]", None, "[0, 0]"])
    assert scored.matrix == [[1, 0], [0, 0], [0, 0], [0, 0]]
    assert not any(a.is_duplicate for a in scored.answers)


def test_the_first_of_equal_answers_is_kept_and_the_others_flagged():
    scored = score_answers(TASK, ROW, ["[1, 0]", "[1.0, 0.0]", "[0, 1]", "[1, 0]"])
    assert scored.matrix == [[1, 0], [0, 1], [0, 0], [0, 0]]
    assert [a.is_duplicate for a in scored.answers] == [False, True, False, True]
    assert [a.slot for a in scored.answers] == [0, 1, 2, 3]
    assert scored.num_parsed == 4


def test_a_task_says_what_makes_answers_equal():
    by_text = VectorTask(counts_spelling=True)
    scored = score_answers(by_text, ROW, ["[1, 0]", "[1.0, 0.0]", "[1, 0]"])
    assert scored.matrix == [[1, 0], [1, 0], [0, 0]]


def test_missing_answers_are_no_duplicates_of_each_other_in_the_record():
    scored = score_answers(TASK, ROW, [None, None, ""])
    assert [a.is_duplicate for a in scored.answers] == [False] * 3
    assert scored.matrix == [[0, 0]] * 3


@given(SLOTS)
def test_evaluation_scores_every_slot_in_its_place(texts):
    scored = score_answers(TASK, ROW, texts, deduplicate=False)
    assert [a.rewards for a in scored.answers] == scored.matrix[: len(texts)]
    assert [a.text for a in scored.answers] == texts


@given(SLOTS.filter(bool), st.booleans())
def test_a_padded_matrix_has_m_rows_that_differ_unless_zero(texts, drops_unparsed):
    task = VectorTask(drops_unparsed=drops_unparsed)
    matrix = score_answers(task, ROW, texts).matrix
    assert len(matrix) == len(texts)
    nonzero = [tuple(row) for row in matrix if any(row)]
    assert len(nonzero) == len(set(nonzero))
    own = {tuple(task.score(t, ROW)) for t in texts if t and task.is_parsed(t)}
    assert set(nonzero) == own - {(0.0, 0.0)}


def test_an_unpadded_chain_without_answers_still_has_a_row():
    task = VectorTask(pads_answers=False, drops_unparsed=True)
    assert score_answers(task, ROW, [None, "prose"]).matrix == [[0, 0]]


def test_a_vector_of_the_wrong_length_is_refused_by_row():
    with pytest.raises(ValueError, match=r"VectorTask\.score returned 3 values for row train-1"):
        score_answers(TASK, ROW, ["[1, 0, 1]"])


def test_scalars_are_weighted_means_and_chains_their_sum():
    task = VectorTask(weights=(3.0, 1.0))
    row = task.rows("train")[0]
    assert task.scalar([1.0, 0.0], row) == pytest.approx(0.75)
    assert task.set_scalar([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], row) == pytest.approx(1.0)


THREE = (Objective("a", "A"), Objective("b", "B", 2.0), Objective("c", "C"))
MATRIX = [[1.0, 0.5, 0.0], [0.2, 0.4, 0.6]]


def test_the_full_reward_vector_changes_nothing():
    assert RewardVector().select(THREE) == list(THREE)
    assert RewardVector().apply(THREE, MATRIX) == MATRIX


def test_a_subset_keeps_its_own_order():
    vector = RewardVector(objectives=["c", "a"])
    assert [o.name for o in vector.select(THREE)] == ["c", "a"]
    assert vector.apply(THREE, MATRIX) == [[0.0, 1.0], [0.6, 0.2]]


def test_scales_multiply_and_floors_zero_the_whole_answer():
    vector = RewardVector(scale={"b": 10.0}, floor={"a": 0.5})
    assert vector.apply(THREE, MATRIX) == [[1.0, 5.0, 0.0], [0.0, 0.0, 0.0]]
    # A value at its floor counts, and a floor holds even for an objective that is not kept.
    at_floor = RewardVector(objectives=["c"], floor={"a": 0.2})
    assert at_floor.apply(THREE, MATRIX) == [[0.0], [0.6]]


def test_a_collapsed_vector_is_the_weighted_mean():
    vector = RewardVector(collapse=True)
    assert [o.name for o in vector.select(THREE)] == ["scalar"]
    assert vector.apply(THREE, MATRIX) == [
        [pytest.approx((1 + 2 * 0.5) / 4)],
        [pytest.approx((0.2 + 2 * 0.4 + 0.6) / 4)],
    ]
    own = RewardVector(collapse=True, weights={"a": 1.0, "c": 3.0})
    assert own.apply(THREE, MATRIX) == [[pytest.approx(0.25)], [pytest.approx(0.5)]]


def test_fixed_weights_replace_the_tasks():
    vector = RewardVector(weights={"a": 1.0})
    assert [o.weight for o in vector.select(THREE)] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("key", ["objectives", "scale", "floor", "weights"])
def test_an_unknown_objective_is_refused_by_key(key):
    value: Any = ["a", "d"] if key == "objectives" else {"a": 1.0, "d": 1.0}
    with pytest.raises(ConfigError, match=rf"reward_vector\.{key}=\['d'\]"):
        RewardVector(**{key: value}).select(THREE)


@pytest.mark.parametrize("settings", [{"objectives": []}, {"weights": {"a": 0.0}}])
def test_a_vector_without_weight_is_refused(settings):
    with pytest.raises(
        ConfigError, match=r"set reward_vector\.objectives or reward_vector\.weights"
    ):
        RewardVector(**settings).select(THREE)
