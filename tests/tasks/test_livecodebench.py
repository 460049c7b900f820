import base64
import json
import os
import pickle
import shutil
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vpo_lightning.errors import ConfigError
from vpo_lightning.prompting import GoalConditioned, MultiAnswer, PromptStyle, SingleAnswer
from vpo_lightning.sandbox.sandbox import Sandbox
from vpo_lightning.scoring import score_answers
from vpo_lightning.tasks.livecodebench.comparison import equal_text, equal_value
from vpo_lightning.tasks.livecodebench.formats import FencedPrograms
from vpo_lightning.tasks.livecodebench.prepare import prepare
from vpo_lightning.tasks.livecodebench.task import PROBLEMS, LiveCodeBenchTask

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
CASES = json.loads((GOLDEN / "livecodebench.json").read_text())["cases"]
CLASS_CASE = "functional class Solution not called: name must be global"
DISPATCH = json.loads((GOLDEN / "dispatch.json").read_text())["cases"]
PREPARED = json.loads((GOLDEN / "lcb_preprocess.json").read_text())["rows"]
PARSING = json.loads((GOLDEN / "text_and_parsing.json").read_text())
RECORDS = [json.loads(line) for line in PROBLEMS.read_text().splitlines()]
TASK = LiveCodeBenchTask(sandbox=Sandbox(test_seconds=2.0))
TOLERANCE = 1e-9  # the reference computes in float64 too
ADD = "a, b = map(int, input().split())\nprint(a + b)"


@pytest.fixture(scope="module", autouse=True)
def bubblewrap():
    if shutil.which("bwrap") is None:
        pytest.fail(
            "bwrap is missing: apt-get install bubblewrap (scripts/test.sh does so as root)"
        )
    yield
    TASK.sandbox.close()


def row_of(truth: dict | str, row_id: str = "x"):
    return TASK.row_from_ground_truth(
        row_id, json.loads(truth) if isinstance(truth, str) else truth
    )


def truth(inputs: list[str], outputs: list[str], name: str = "") -> dict:
    kind = "functional" if name else "stdin"
    return {"testtype": kind, "fn_name": name, "inputs": inputs, "outputs": outputs}


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case["category"] != CLASS_CASE],  # a departure, tested below
    ids=lambda case: case["category"],
)
def test_rewards_equal_the_golden_values(case):
    single, expected = case["mode"] == "single", case["expected"]
    style: PromptStyle = SingleAnswer() if single else MultiAnswer(case["m"])
    row = row_of(case["ground_truth"])
    scored = score_answers(TASK, row, style.parse(TASK, case["text"]))
    assert scored.matrix == ([expected["sub_scores"]] if single else expected["sub_scores"])
    scalar = TASK.scalar(scored.matrix[0], row) if single else TASK.set_scalar(scored.matrix, row)
    assert scalar == pytest.approx(expected["score"], abs=TOLERANCE)
    assert single or scored.num_parsed == expected["num_parsed"]


def test_a_method_of_class_solution_counts_where_the_reference_asks_for_a_global_function():
    (case,) = [case for case in CASES if case["category"] == CLASS_CASE]
    assert case["expected"]["sub_scores"] == [0.0] * 4
    row = row_of(case["ground_truth"])
    scored = score_answers(TASK, row, SingleAnswer().parse(TASK, case["text"]))
    assert scored.matrix == [[1.0] * 4]


@pytest.mark.parametrize(
    "case",
    # weights together with several answers are refused by vpo-score, for every task
    [c for c in DISPATCH if c["data_source"] == "livecodebench" and "refused" not in c["category"]],
    ids=lambda case: case["category"],
)
def test_whole_records_score_as_the_reference_dispatches_them(case):
    given_truth = dict(case["ground_truth"])
    weights = given_truth.pop("weights", None)
    m = case["extra_info"].get("num_solutions", 1)
    row = row_of(given_truth)
    style: PromptStyle = MultiAnswer(m) if m > 1 else SingleAnswer()
    matrix = score_answers(TASK, row, style.parse(TASK, case["text"])).matrix
    if case["expected"].get("raises"):
        with pytest.raises(ConfigError, match="2 weights for x; expected 16"):
            TASK.goal_scalar(matrix[0], weights, row)
        return
    if weights is not None:
        scalar = TASK.goal_scalar(matrix[0], weights, row)
    else:
        scalar = TASK.set_scalar(matrix, row) if m > 1 else TASK.scalar(matrix[0], row)
    assert scalar == pytest.approx(case["expected"]["score"], abs=TOLERANCE)
    assert matrix == (case["expected"]["sub_scores"] if m > 1 else [case["expected"]["sub_scores"]])


@pytest.mark.parametrize("case", PARSING["extract_code_block"], ids=lambda case: repr(case["text"]))
def test_a_program_is_found_where_the_reference_finds_it(case):
    assert (FencedPrograms().parse_single(case["text"]) or "") == case["expected"]


@pytest.mark.parametrize("case", PARSING["parse_solutions"], ids=lambda case: repr(case["text"]))
def test_programs_are_split_where_the_reference_splits_them(case):
    found = FencedPrograms().parse_multiple(case["text"], case["m"])
    assert [program or "" for program in found] == case["expected"]


@pytest.mark.parametrize("case", PARSING["ast_dedup"], ids=lambda case: repr(case["solutions"]))
def test_duplicates_are_those_of_the_reference(case):
    keys = [TASK.duplicate_key(program, []) for program in case["solutions"]]
    kept = [p for i, p in enumerate(case["solutions"]) if keys[i] not in keys[:i]]
    assert kept == case["expected"]


@given(st.lists(st.text("ab \n=1#-", min_size=1).map(str.strip), min_size=1, max_size=4))
def test_what_is_rendered_is_parsed_again(programs):
    form = FencedPrograms()
    programs = [program for program in programs if program and "---" not in program]
    for program in programs:
        assert form.parse_single(form.render_single(program)) == program
    if programs:
        m = len(programs) + 1
        assert form.parse_multiple(form.render_multiple(programs), m) == [*programs, None]


@given(st.text("`python-\n a", max_size=60), st.integers(1, 4))
def test_no_text_breaks_the_parsing(text, m):
    assert len(FencedPrograms().parse_multiple(text, m)) == m
    FencedPrograms().parse_single(text)


@pytest.mark.parametrize("text", [None, 42, b"x", ["print(1)"]])
def test_text_that_is_no_string_scores_zero_where_the_reference_raises(text):
    from vpo_lightning.score_lines import score_record

    for mode in ({"mode": "single"}, {"mode": "multi", "m": 2}):
        given_record = {"text": text, "ground_truth": truth(["1\n"], ["1\n"]), **mode}
        record = score_record(TASK, given_record, "line 1")
        assert (record["rewards"], record["num_parsed"], record["scalar"]) == ([[0.0]], 0, 0.0)


@pytest.mark.parametrize("answer", ["\0", "\ud800", "x" * 100_000, "(" * 50_000, "-" * 2_000_000])
def test_odd_programs_score_zero_and_get_a_key(answer):
    row = row_of(truth(["1\n"], ["1\n"]))
    assert TASK.score(answer, row) == [0.0]
    assert TASK.duplicate_key(answer, [0.0]) == TASK.duplicate_key(answer, [0.0])


@pytest.mark.parametrize("given_row", PREPARED, ids=lambda row: row["question_id"])
def test_rows_are_prepared_as_the_golden_file_has_them(given_row):
    (record,) = [r for r in RECORDS if r["question_id"] == given_row["question_id"]]
    row = TASK.row_from_record("x", record)
    splits = [s for s in ("train", "test") if row.id in [found.id for found in TASK.rows(s)]]
    assert splits == ([given_row["split"]] if given_row["split"] else [])
    if "official_decode_raises" in given_row:  # private tests in plain JSON, which we read
        assert row.ground_truth["inputs"] == ["one\n", "a b c\n", "to be or not\n"]
        return
    assert row.ground_truth["inputs"] == given_row["kept_inputs"]
    assert row.ground_truth["testtype"] == given_row["testtype"]
    assert given_row["signature"] is None or f"\n{given_row['signature']}\n" in row.prompt


def test_rows_have_an_objective_for_each_test_and_tell_which_are_public():
    row = next(row for row in TASK.rows("train") if row.id == "90001")
    assert [o.name for o in row.objectives] == ["tc_0", "tc_1", "tc_2", "tc_3"]
    assert [o.description for o in row.objectives] == [
        "passing test 1 (hidden)",
        "passing test 2 (hidden)",
        "passing test 3 (an example of the statement)",
        "passing test 4 (hidden)",
    ]
    assert {len(row.objectives) for row in TASK.rows("train")} == {2, 4, 5, 16}


def test_each_prompt_shows_the_question_and_the_form_once():
    for row in [*TASK.rows("train"), *TASK.rows("test")]:
        k = len(row.objectives)
        for style, weights in (
            (SingleAnswer(), None),
            (MultiAnswer(3), None),
            (GoalConditioned(), [1 / k] * k),
        ):
            (message,) = style.messages(TASK, row, weights)
            assert message["content"].count("```python") == 1
            assert message["content"].startswith(row.prompt)
            assert all(output not in row.prompt for output in row.ground_truth["outputs"][9:])
        asked = MultiAnswer(3).messages(TASK, row)[0]["content"]
        assert "line that holds only ---" in asked
        asked = GoalConditioned().messages(TASK, row, [1 / k] * k)[0]["content"]
        assert "passing test 1" in asked


SOLUTIONS = {
    "syn001_a": ADD,
    "90001": "class Solution:\n    def doubleAll(self, nums: List[int]) -> List[int]:\n"
    "        return [2 * x for x in nums]",
    "90003": "def hasPair(nums, target):\n"
    "    return any(a + b == target for a, b in combinations(nums, 2))",
}


@pytest.mark.parametrize("name", SOLUTIONS)
def test_right_solutions_of_the_authored_problems_pass_every_test(name):
    row = next(r for split in ("train", "test") for r in TASK.rows(split) if r.id == name)
    assert TASK.score(SOLUTIONS[name], row) == [1.0] * len(row.objectives)


def stored(tests: object) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(tests))).decode()


class _Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/vpo-pickle-was-executed",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"private_test_cases": stored(_Evil())}, r"UnpicklingError: .*may not name posix\.system"),
        ({"private_test_cases": stored([1, 2])}, "the pickle holds list; expected JSON text"),
        ({"private_test_cases": stored("{")}, "cannot be decoded"),
        ({"private_test_cases": "!!"}, "cannot be decoded"),
        ({"private_test_cases": base64.b64encode(b"x").decode()}, "cannot be decoded"),
        ({"private_test_cases": stored("[]")[:-8]}, "cannot be decoded"),
        ({"private_test_cases": 3}, "expected text"),
        ({"private_test_cases": '[{"input": "1"}]'}, "testtype is missing"),
        (
            {"private_test_cases": '[{"input": "1", "output": "1", "testtype": "gui"}]'},
            "expected stdin or functional",
        ),
        ({"contest_date": "soon"}, "contest_date cannot be read"),
        ({"metadata": "{"}, "metadata is not JSON"),
        ({"metadata": "{}"}, "func_name is missing"),
        ({"metadata": '{"func_name": "a b"}'}, "expected the name of a function"),
        ({"question_id": None}, "question_id is None; expected text"),
    ],
)
def test_a_malformed_problem_is_refused_with_its_file_row_and_field(tmp_path, change, message):
    path = tmp_path / "problems.jsonl"
    functional = next(r for r in RECORDS if r["question_id"] == "90001")
    rows = [RECORDS[0], {**functional, **change}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ConfigError, match=message) as caught:
        LiveCodeBenchTask(train_path=str(path)).rows("train")
    assert f"{path}, row 2 (task.train_path)" in str(caught.value)
    assert not os.path.exists("/tmp/vpo-pickle-was-executed")


@pytest.mark.parametrize(
    ("given_truth", "message"),
    [
        (truth([], []), "has 0 entries for 0 inputs"),
        (truth(["1"], []), "has 0 entries for 1 inputs"),
        (truth(["1"], ["{"], "f"), "is not JSON"),
        ({**truth(["1"], ["1"]), "testtype": "x"}, "expected stdin or functional"),
        ({"testtype": "stdin"}, "inputs is missing"),
    ],
)
def test_a_malformed_ground_truth_is_refused(given_truth, message):
    with pytest.raises(ConfigError, match=message):
        row_of(given_truth)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_before": "spring"}, "train_before='spring': expected a day"),
        ({"comparison": "fuzzy"}, "comparison='fuzzy': expected one of"),
        ({"max_tests": 0}, "max_tests=0: expected 1 or more"),
        ({"max_tests": "many"}, "max_tests='many': expected a whole number"),
    ],
)
def test_settings_that_cannot_work_are_refused(change, message):
    with pytest.raises(ConfigError, match=f"task.{message}"):
        LiveCodeBenchTask(**change)


def test_rows_of_the_reference_implementation_are_read(tmp_path):
    content = "Add two numbers.\n\nReturn your code in a block."
    record = {
        "data_source": "livecodebench",
        "prompt": [
            {"role": "system", "content": "You code."},
            {"role": "user", "content": content},
        ],
        "reward_model": {"ground_truth": json.dumps(truth(["1 2\n"], ["3\n"]))},
        "extra_info": {},
    }
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(record) + "\n")
    (row,) = LiveCodeBenchTask(train_path=str(path), instruction_start="Return your").rows("train")
    assert (row.prompt, row.system_prompt) == ("Add two numbers.", "You code.")
    assert TASK.score(ADD, row) == [1.0]
    (whole,) = LiveCodeBenchTask(train_path=str(path)).rows("train")
    assert whole.prompt == content


def test_a_prepared_file_gives_the_same_rows(tmp_path):
    out = tmp_path / "small.jsonl"
    assert prepare([PROBLEMS], out) == 12
    task = LiveCodeBenchTask(train_path=str(out), test_path=str(out))
    for split in ("train", "test"):
        assert list(task.rows(split)) == list(TASK.rows(split))


@pytest.mark.parametrize(
    ("written", "expected", "lines", "numbers"),
    [
        ("1 \n2\n\n", "1\n2", True, True),
        ("1\n\n2", "1\n2", False, False),
        (" 1", "1", False, True),
        ("1.0", "1", False, True),
        ("0.30000000000000004", "0.3", False, False),
        ("1 2", "1  2", False, True),
        ("Yes", "yes", False, False),
        ("1 a", "1.0 a", False, False),
        ("", "", True, True),
        ("", "1", False, False),
        ("1\r\n2\r\n", "1\n2\n", True, True),
        ("sNaN 1", "1 1", False, False),
        ("nan", "1", False, False),
    ],
)
def test_outputs_agree_by_line_or_by_number(written, expected, lines, numbers):
    assert equal_text(written, expected) is lines
    assert equal_text(written, expected, "numbers") is numbers


@pytest.mark.parametrize(
    ("written", "expected", "equal"),
    [
        ("1", "true", True),
        ("[1.0, 2]", "[1, 2]", True),
        ('{"a": 1}', '{"a": 1}', True),
        ("", "null", False),
        ("1", '"1"', False),
        ("[" * 100_000, "1", False),
        ("9" * 10_000, "1", False),
    ],
)
def test_returned_values_agree_as_in_python(written, expected, equal):
    assert equal_value(written, expected) is equal


def test_the_scores_of_a_stuck_answer_are_zero_and_counted():
    with Sandbox(slots=2, test_seconds=0.3) as sandbox:
        task = LiveCodeBenchTask(sandbox=sandbox)
        row = row_of(truth(["1 2\n", "0 0\n"], ["3\n", "0\n"]))
        program = f"{ADD}\nwhile a: pass"
        assert task.score(program, row) == [0.0, 1.0]
        assert task.counters() == {"timed_out_tests": 1}


def test_expected_outputs_never_enter_the_sandbox():
    needle = "4815162342"
    program = (
        "import gc\n"
        f"needle = '{needle[::-1]}'[::-1]\n"
        "print(any(needle in str(thing) for thing in gc.get_objects() if thing is not globals()))"
    )
    assert TASK.score(program, row_of(truth(["x"], [needle]))) == [0.0]
    (outcome,) = TASK.sandbox.run_tests(program, ["x"])
    assert outcome.stdout == b"False\n"


@settings(max_examples=20, deadline=None)
@given(st.text())
def test_no_text_breaks_the_scoring(text):
    row = row_of(truth(["1\n"], ["no such output\n"]))
    for style in (SingleAnswer(), MultiAnswer(2)):
        assert not any(map(any, score_answers(TASK, row, style.parse(TASK, text)).matrix))
