"""vpo-score: golden values through the command, bad lines, files, and exit statuses."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from vpo_lightning import entry
from vpo_lightning.errors import ConfigError
from vpo_lightning.parsing import NumberedTags
from vpo_lightning.score import score
from vpo_lightning.score_lines import score_lines, score_record
from vpo_lightning.task import Objective, PromptRow, Task

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden"
FILES = {"musique": "musique", "eureqa": "eureqa", "toolrl": "tool", "maze_9x9_text": "maze"}
SOURCES = {"musique": "musique", "eureqa": "eureqa", "tool": "toolrl", "maze": "maze_9x9_text"}
TOLERANCE = 1e-9  # the reference computes in float64 too
# Decisions of ours where the reference raises an error.
DEPARTURES = {"non-string", "non-string text", "superscript digit passes isdigit but int() fails"}


@dataclass
class Done:
    """What a command left: exit status and output."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def vpo_score(tmp_path, monkeypatch, capsys):
    """The command in this process and a temporary folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Done:
        status = entry.run(score, "score", arguments)
        return Done(status, *capsys.readouterr())

    return run


def started_command(*arguments: str, folder: Path, stdin: str | None = None):
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "vpo_lightning.score", *arguments],
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def write(path: Path, records: Sequence[Any]) -> Path:
    lines = [r if isinstance(r, str) else json.dumps(r) for r in records]
    path.write_text("\n".join(lines) + "\n")
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def cases(name: str) -> list[dict[str, Any]]:
    return json.loads((GOLDEN / f"{name}.json").read_text())["cases"]


def flat(matrix: Sequence[Sequence[float]]) -> list[float]:
    return [value for row in matrix for value in row]


QUESTION = {"answer": "Paris", "answer_aliases": [], "supporting_indices_ordered": [3, 7]}
GOOD = "<support>3,7</support><answer>Paris</answer>"
HALF = "<support>3</support><answer>Lyon</answer>"


def line(**changes: Any) -> dict[str, Any]:
    whole = {"id": "a", "text": GOOD, "mode": "single", "ground_truth": QUESTION} | changes
    return {key: value for key, value in whole.items() if value != "absent"}


# Golden values through the command


@pytest.mark.parametrize("task", FILES)
def test_the_command_gives_the_golden_rewards(task, tmp_path, vpo_score):
    found = cases(FILES[task])
    write(tmp_path / "in.jsonl", [{**case, "expected": None} for case in found])
    done = vpo_score(f"task={task}", "input=in.jsonl", "output=out.jsonl")
    assert done.returncode == 0, done.stderr
    records = read(tmp_path / "out.jsonl")
    assert [record["id"] for record in records] == [case["id"] for case in found]
    for case, record in zip(found, records, strict=True):
        expected = case["expected"]
        if "raises" in expected:
            assert case["category"] in DEPARTURES
            continue
        single = case["mode"] == "single"
        matrix = [expected["sub_scores"]] if single else expected["sub_scores"]
        assert len(record["rewards"]) == len(matrix)
        assert flat(record["rewards"]) == pytest.approx(flat(matrix), abs=TOLERANCE)
        assert record["scalar"] == pytest.approx(expected["scalar"], abs=TOLERANCE)
        assert single or record["num_parsed"] == expected["num_parsed"]
        assert record["error"] is None


@pytest.mark.parametrize("source", SOURCES)
def test_whole_records_are_dispatched_as_the_golden_values_say(source, tmp_path, vpo_score):
    """With weights the scalar is their sum with the rewards; weights for a chain are refused."""
    found = [case for case in cases("dispatch") if case["data_source"] == source]
    lines = []
    for case in found:
        m = (case["extra_info"] or {}).get("num_solutions") or 1
        mode = {"mode": "multi", "m": m} if m > 1 else {"mode": "single"}
        lines.append({"id": case["id"], **mode, **{k: case[k] for k in ("text", "ground_truth")}})
    write(tmp_path / "in.jsonl", lines)
    done = vpo_score(f"task={SOURCES[source]}", "input=in.jsonl", "output=out.jsonl")
    records = read(tmp_path / "out.jsonl")
    for case, record in zip(found, records, strict=True):
        expected = case["expected"]
        if "raises" in expected:
            assert record["rewards"] is None
            assert "weights" in record["error"]
            continue
        single = not isinstance(expected["sub_scores"][0], list)
        matrix = [expected["sub_scores"]] if single else expected["sub_scores"]
        assert flat(record["rewards"]) == pytest.approx(flat(matrix), abs=TOLERANCE)
        assert record["scalar"] == pytest.approx(expected["score"], abs=TOLERANCE)
    refused = any("raises" in case["expected"] for case in found)
    assert done.returncode == (3 if refused else 0)


def test_rows_of_a_data_set_stand_for_their_ground_truth(tmp_path, vpo_score):
    for task, answer in (("musique", GOOD), ("eureqa", "<entity_A>x</entity_A>"), ("toolrl", "Hi")):
        path = ROOT / "tasks" / task / "data" / "train.jsonl"
        rows = [json.loads(text) for text in path.read_text().splitlines()]
        write(
            tmp_path / "in.jsonl", [{"text": answer, "mode": "single", "row": row} for row in rows]
        )
        done = vpo_score(f"task={task}", "input=in.jsonl", "output=out.jsonl")
        assert done.returncode == 0, done.stderr
        assert len(read(tmp_path / "out.jsonl")) == len(rows)


# What a record says


CHAIN = (
    f"<response_1>{GOOD}</response_1><response_2>{GOOD}</response_2>"
    f"<response_3>nothing</response_3><response_5>{HALF}</response_5>"
)


def musique_record(deduplicate: bool = True, **changes: Any) -> dict[str, Any]:
    from vpo_lightning.tasks.musique.task import MusiqueTask

    return score_record(MusiqueTask(), line(**changes), "line 1", deduplicate=deduplicate)


def test_training_drops_duplicates_and_evaluation_keeps_every_slot():
    one, half, zero = [1.0] * 5, [1.0, 0.0, 1.0, 1.0, 0.0], [0.0] * 5
    training = musique_record(text=CHAIN, mode="multi", m=5)
    assert training["rewards"] == [one, zero, half, zero, zero]
    assert training["scalar"] == pytest.approx(1 + 3 / 7)
    evaluation = musique_record(deduplicate=False, text=CHAIN, mode="multi", m=5)
    assert evaluation["rewards"] == [one, one, zero, zero, half]
    for record in (training, evaluation):
        assert record["flags"] == ["ok", "duplicate", "unparsed", "missing", "ok"]
        assert record["num_parsed"] == 3


@pytest.mark.parametrize("text", [None, 7, ["x"], {"a": 1}, True])
def test_text_that_is_no_text_scores_zero_instead_of_raising(text):
    single = musique_record(text=text)
    assert (single["rewards"], single["scalar"]) == ([[0.0] * 5], 0.0)
    assert single["flags"] == ["not_text"]
    assert musique_record(text=text, mode="multi", m=2)["rewards"] == [[0.0] * 5] * 2


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("", "not one JSON object"),
        ('{"id": "cut', "not one JSON object"),
        ("[1]", "expected a JSON object, got list"),
        ("[" * 100_000, "not one JSON object"),
        (line(mode="absent"), "field mode is None; expected single or multi"),
        (line(mode="both"), "field mode is 'both'"),
        (line(mode="multi"), "field m is None; expected a whole number, 1 or more"),
        (line(mode="multi", m=0), "field m is 0"),
        (line(mode="multi", m=True), "field m is True"),
        (line(text="absent"), "field text is missing"),
        (line(ground_truth="absent"), "neither field ground_truth nor field row"),
        (line(ground_truth="{cut"), "field ground_truth is no JSON"),
        (line(ground_truth=[1]), "field ground_truth is list; expected an object"),
        (line(ground_truth={"answer": "x"}), "ground_truth.supporting_indices_ordered is missing"),
        (line(ground_truth=QUESTION | {"answer": 3}), "field ground_truth.answer is 3"),
        (line(ground_truth=QUESTION | {"weights": "x"}), "weights is no list of numbers"),
        (line(ground_truth=QUESTION | {"weights": [1, 0]}), "2 weights for the 5 objectives"),
        (line(ground_truth="absent", row={"id": 1}), "field paragraphs is missing"),
        (line(ground_truth="absent", row={"answerable": False}), "not answerable"),
    ],
)
def test_a_bad_line_gets_an_error_record_and_the_others_are_scored(bad, problem):
    from vpo_lightning.tasks.musique.task import MusiqueTask

    lines = [text if isinstance(text, str) else json.dumps(text) for text in (line(), bad, line())]
    first, record, last = score_lines(MusiqueTask(), lines)
    assert first["rewards"] == last["rewards"] == [[1.0] * 5]
    assert record["rewards"] is record["scalar"] is record["num_parsed"] is None
    assert record["error"].startswith("line 2: ")
    assert problem in record["error"]
    assert record["id"] == ("a" if isinstance(bad, dict) else None)


class FaultyTask(Task):
    """A user's task with a fault in its scoring."""

    objectives = (Objective("only", "being right"),)
    answer_format = NumberedTags("answer", "x")

    def rows(self, split: str) -> Sequence[PromptRow]:
        raise ConfigError("no rows")

    def score(self, answer: str, row: PromptRow) -> list[float]:
        return [float(row.ground_truth["missing"])] if answer == "fault" else [1.0]


def test_a_fault_in_a_task_fails_its_line_only():
    lines = [json.dumps(line(text=text)) for text in ("fine", "fault", "fine")]
    records = list(score_lines(FaultyTask(), lines))
    assert [record["error"] is None for record in records] == [True, False, True]
    assert "KeyError" in records[1]["error"]
    (record,) = score_lines(FaultyTask(), [json.dumps(line(ground_truth="absent", row={}))])
    assert "reads no records" in record["error"]


# The command


def test_some_failed_lines_end_with_status_3_and_as_many_records(tmp_path, vpo_score):
    write(tmp_path / "in.jsonl", [line(), "{cut", "", line(id="last", text=HALF)])
    done = vpo_score("task=musique", "input=in.jsonl", "output=out.jsonl")
    assert done.returncode == 3
    records = read(tmp_path / "out.jsonl")
    assert [record["error"] is None for record in records] == [True, False, False, True]
    assert done.stderr.strip() == "scored: 2, failed: 2"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_dedup_false_gives_one_row_for_every_slot(tmp_path, vpo_score):
    write(tmp_path / "in.jsonl", [line(text=CHAIN, mode="multi", m=5)])
    arguments = ("task=musique", "input=in.jsonl", "output=out.jsonl", "dedup=false")
    assert vpo_score(*arguments).returncode == 0
    assert read(tmp_path / "out.jsonl")[0]["rewards"][1] == [1.0] * 5


def test_lines_pass_from_standard_input_to_standard_output(tmp_path):
    text = json.dumps(line()) + "\n"
    done = started_command("task=musique", "input=-", "output=-", folder=tmp_path, stdin=text)
    assert done.returncode == 0
    assert json.loads(done.stdout)["rewards"] == [[1.0] * 5]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["input=in.jsonl", "output=o"], "task: choose one of eureqa,"),
        (["task=musique", "output=o"], "input: a value is needed"),
        (["task=nothing", "input=in.jsonl", "output=o"], "options: eureqa,"),
        (["tsk=musique"], "tsk=musique: there is no key tsk (did you mean task?)"),
        (["task=musique", "input=gone.jsonl", "output=o"], "input=gone.jsonl: cannot be read"),
        (["task=musique", "input=.", "output=o"], "input=.: cannot be read"),
        (["task=musique", "input=empty.jsonl", "output=o"], "input=empty.jsonl: it holds no lines"),
        (["task=musique", "input=in.jsonl", "output=gone/o"], "output=gone/o: cannot be written"),
        (["task=musique", "input=in.jsonl", "output=."], "output=.: cannot be written"),
        (["task=musique", "input=in.jsonl", "output=o", "dedup=maybe"], "dedup=maybe: expected"),
        (
            ["task=musique", "input=in.jsonl", "output=o", "task.test_seed=x"],
            "task.test_seed=x: expected a number",
        ),
        (
            ["task=musique", "input=in.jsonl", "output=o", "task.sise=9"],
            "task.sise=9: there is no key task.sise",
        ),
        (["task=ultrafeedback_online", "input=in.jsonl", "output=o"], "task.judge.model: a value"),
    ],
)
def test_a_setting_that_cannot_work_is_one_line_and_status_2(
    arguments, problem, tmp_path, vpo_score
):
    write(tmp_path / "in.jsonl", [line()])
    (tmp_path / "empty.jsonl").write_text("")
    done = vpo_score(*arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert problem in done.stderr
    assert not done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.jsonl", "in.jsonl"]


def test_a_sandbox_that_is_not_there_is_one_line_and_status_2(tmp_path, vpo_score, monkeypatch):
    write(tmp_path / "in.jsonl", [line()])
    monkeypatch.setenv("PATH", str(tmp_path))
    done = vpo_score("task=livecodebench", "input=in.jsonl", "output=o")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "apt-get install bubblewrap" in done.stderr


BAD_TASK = "+task={_target_: tests.task_layer.bad_task.BadTask}"


def test_a_task_that_hangs_or_crashes_fails_its_lines_only(tmp_path, vpo_score):
    words = ("good", "spin", "segfault", "nan", "good")
    write(tmp_path / "in.jsonl", [line(text=word, ground_truth={}) for word in words])
    arguments = (BAD_TASK, "input=in.jsonl", "output=out.jsonl", "scoring.deadline=0.5")
    done = vpo_score(*arguments)
    assert done.returncode == 3
    records = read(tmp_path / "out.jsonl")
    assert [record["rewards"] for record in records] == [[[1.0, 0.5]], *[None] * 3, [[1.0, 0.5]]]
    assert "line 2: no result within scoring.deadline=0.5 seconds" in records[1]["error"]
    assert "SIGSEGV" in records[2]["error"]
    assert "returned nan as x" in records[3]["error"]
    assert "score_failures: 3, score_timeouts: 1" in done.stderr
    done = vpo_score(*arguments, "scoring.failure_value=0.25", "scoring.workers=2")
    assert done.returncode == 3
    declared = read(tmp_path / "out.jsonl")
    assert [r["rewards"] for r in declared[1:4]] == [[[0.25, 0.25]]] * 3
    assert [r["flags"] for r in declared] == [["ok"], *[["failed"]] * 3, ["ok"]]
    assert declared[3]["error"].startswith("line 4: answer 1: BadTask.score returned nan")


def test_explanations_are_told_on_request(tmp_path, vpo_score):
    write(tmp_path / "in.jsonl", [line()])
    vpo_score("task=musique", "input=in.jsonl", "output=out.jsonl", "scoring.explain=true")
    (told,) = read(tmp_path / "out.jsonl")[0]["explanations"]
    assert told == "cited 3, 7, wanted 3, 7; answered 'Paris', wanted 'Paris'"


def test_a_config_error_takes_two_seconds_at_most(tmp_path):
    write(tmp_path / "in.jsonl", [line()])
    started = time.perf_counter()
    done = started_command("task=nothing", "input=in.jsonl", "output=o", folder=tmp_path)
    assert time.perf_counter() - started < 4, "twice the limit, for a busy machine"
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


def test_an_output_is_replaced_only_when_it_is_complete(tmp_path, vpo_score):
    write(tmp_path / "in.jsonl", [line()])
    (tmp_path / "out.jsonl").write_text("older")
    (tmp_path / "empty.jsonl").write_text("")
    vpo_score("task=musique", "input=empty.jsonl", "output=out.jsonl")
    assert (tmp_path / "out.jsonl").read_text() == "older"
    vpo_score("task=musique", "input=in.jsonl", "output=in.jsonl")
    assert read(tmp_path / "in.jsonl")[0]["rewards"] == [[1.0] * 5]


def test_the_command_does_not_import_torch(tmp_path):
    write(tmp_path / "in.jsonl", [line()])
    code = (
        "import sys; from vpo_lightning import entry; from vpo_lightning.score import score\n"
        "entry.run(score, 'score', ['task=musique', 'input=in.jsonl', 'output=out.jsonl'])\n"
        "sys.exit(any(m in sys.modules for m in ('torch', 'lightning', 'transformers', 'vllm')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, timeout=60, check=False)
    assert done.returncode == 0
    assert (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize("name", ["score.yaml", *(f"task/{task}.yaml" for task in FILES)])
def test_a_config_says_what_it_is_for_in_its_first_line_and_is_short(name):
    lines = (ROOT / "conf" / name).read_text().splitlines()
    assert lines[0].startswith("# ")
    assert "vpo-" in lines[0]
    assert len(lines) <= 25


@pytest.mark.slow
@pytest.mark.parametrize("task", ["musique", "toolrl"])
def test_ten_thousand_completions_are_scored_within_ten_seconds(task, tmp_path, vpo_score):
    found = [case for case in cases(FILES[task]) if "raises" not in case["expected"]]
    write(tmp_path / "in.jsonl", [found[i % len(found)] for i in range(10_000)])
    started = time.perf_counter()
    done = vpo_score(f"task={task}", "input=in.jsonl", "output=out.jsonl")
    assert time.perf_counter() - started < 10
    assert done.returncode == 0
    assert len(read(tmp_path / "out.jsonl")) == 10_000
