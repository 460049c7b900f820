"""Mazes from files: what is read, and how a file that cannot be used is refused."""

import json
import os
import time
from pathlib import Path

import pytest

from tests.tasks.maze_search import steps_from, zone_corner
from vpo_lightning.errors import ConfigError
from vpo_lightning.tasks.maze.task import MazeTask

ROOT = Path(__file__).parents[2]
REAL = Path(os.environ.get("VPO_REAL_DATA", ROOT.parent / "shared")) / "data" / "maze"
GRID = "S . G\n# L D\n. B E"
ROW = {
    "grid_text": GRID,
    "start": [0, 0],
    "end": [2, 2],
    "max_steps": 8,
    "num_gold": 1,
    "num_diamond": 1,
    "num_lava": 1,
}


def write(path: Path, *rows: object) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines))
    return path


def task_of(path: Path, size: int = 3, key: str = "test_path") -> MazeTask:
    other = write(path.parent / "good.jsonl", ROW)
    paths = {"train_path": str(other), "test_path": str(other)} | {key: str(path)}
    return MazeTask(size=size, **paths)  # type: ignore[arg-type]


def changed(**fields: object) -> dict[str, object]:
    return {name: value for name, value in (ROW | fields).items() if value is not ...}


def test_rows_of_a_file_keep_its_order_and_number(tmp_path):
    second = changed(max_steps=12, seed=43, note="ignored")
    task = task_of(write(tmp_path / "mazes.jsonl", ROW, second))
    rows = task.rows("test")
    assert len(rows) == 2
    assert [row.ground_truth["max_steps"] for row in rows] == [8, 12]
    assert [row.id for row in rows] == ["test-1", "test-2"]
    assert rows[0].ground_truth["grid_text"] == GRID
    assert task.score("RIGHT RIGHT DOWN DOWN", rows[0]) == [1.0] * 4


def test_the_task_and_not_the_file_decides_the_scoring(tmp_path):
    task = task_of(write(tmp_path / "mazes.jsonl", changed(score_mode="convex_bonus")))
    assert task.rows("test")[0].ground_truth["score_mode"] == "linear"


def test_rows_written_for_the_reference_implementation_are_read(tmp_path):
    record = {
        "data_source": "maze",
        "prompt": [{"role": "user", "content": "Find a route."}],
        "reward_model": {"style": "rule", "ground_truth": json.dumps(ROW)},
    }
    row = task_of(write(tmp_path / "mazes.jsonl", record)).rows("test")[0]
    assert row.ground_truth["grid_text"] == GRID
    assert "Find a walk" in row.prompt  # our own question, which any answer form can follow


def test_a_record_makes_a_row(tmp_path):
    task = task_of(write(tmp_path / "mazes.jsonl", ROW))
    assert task.row_from_record("a", ROW).ground_truth == task.rows("test")[0].ground_truth
    with pytest.raises(ConfigError, match="field max_steps is missing"):
        task.row_from_record("a", changed(max_steps=...))


def test_a_ground_truth_with_an_unknown_scoring_is_refused(tmp_path):
    task = task_of(write(tmp_path / "mazes.jsonl", ROW))
    with pytest.raises(ConfigError, match=r"ground_truth\.score_mode is 'odd'"):
        task.row_from_ground_truth("a", changed(score_mode="odd"))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("not json", "not complete JSON"),
        (json.dumps(ROW)[:60], "not complete JSON"),
        ("[1, 2]", "expected a JSON object"),
        (changed(grid_text=...), "field grid_text is missing"),
        (changed(grid_text=None), "field grid_text is None"),
        (changed(grid_text=""), "field grid_text has 1 rows and 0 columns"),
        (changed(grid_text="S . G\n# L\n. B E"), "field grid_text is not rectangular"),
        (changed(grid_text="S . G\n# L D"), "field grid_text has 2 rows and 3 columns"),
        (changed(grid_text="S X G\n# L D\n. B E"), "field grid_text has the symbol 'X'"),
        (changed(grid_text="S.G\n#LD\n.BE"), "field grid_text has the symbol 'S.G'"),
        (changed(grid_text="S S G\n# L D\n. B E"), "field grid_text has 2 cells S"),
        (changed(grid_text="S . G\n# L D\n. B ."), "field grid_text has 0 cells E"),
        (changed(start=...), "field start is missing"),
        (changed(start=[0, 1]), r"field start is \[0, 1\], but S is at \[0, 0\]"),
        (changed(start="0,0"), "field start is '0,0'; expected a list"),
        (changed(end=...), "field end is missing"),
        (changed(end=[2, 1]), r"field end is \[2, 1\], but E is at \[2, 2\]"),
        (changed(max_steps=...), "field max_steps is missing"),
        (changed(max_steps=None), "field max_steps is None"),
        (changed(max_steps="8"), "field max_steps is '8'; expected a whole number"),
        (changed(max_steps=3), "field max_steps is 3, too few"),
        (changed(max_steps=-1), "field max_steps is -1, too few"),
        (changed(num_gold=2), "field num_gold is 2, but the grid has 1 G"),
        (changed(grid_text="S # G\n# L D\n. B E"), "too few to walk from S to E"),
    ],
)
@pytest.mark.parametrize("key", ["train_path", "test_path"])
def test_a_malformed_row_is_refused_with_file_row_field_and_key(tmp_path, bad, message, key):
    path = write(tmp_path / "mazes.jsonl", ROW, bad, ROW)
    with pytest.raises(ConfigError, match=message) as error:
        task_of(path, key=key).check()
    text = str(error.value)
    assert "mazes.jsonl, row 2" in text
    assert f"task.{key}" in text
    assert "\n" not in text


def test_a_file_cut_in_the_middle_of_its_last_row_is_refused(tmp_path):
    path = write(tmp_path / "mazes.jsonl", ROW, ROW)
    path.write_text(path.read_text()[:-20])
    with pytest.raises(ConfigError, match=r"row 2 .*not complete JSON"):
        task_of(path).check()


def test_a_missing_or_empty_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"task\.test_path=.*no such file"):
        task_of(tmp_path / "none.jsonl").check()
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(ConfigError, match=r"task\.test_path=.*holds no rows"):
        task_of(tmp_path / "empty.jsonl").check()


def test_grids_of_another_size_are_refused_with_the_key_to_change(tmp_path):
    path = write(tmp_path / "mazes.jsonl", ROW)
    with pytest.raises(ConfigError, match=r"3 rows and 3 columns; expected 9.*set task\.size"):
        MazeTask(train_path=str(path)).check()


@pytest.mark.real_data
@pytest.mark.skipif(not REAL.is_dir(), reason="needs VPO_REAL_DATA")
def test_the_published_grids_are_read_and_pose_the_same_conflict():
    began = time.monotonic()
    task = MazeTask(
        train_path=str(REAL / "official_train_1000.jsonl"),
        test_path=str(REAL / "official_test_100.jsonl"),
    )
    task.check()
    assert time.monotonic() - began < 2  # aim 1 s; .1 s on an idle machine
    lines = (REAL / "official_test_100.jsonl").read_text().splitlines()
    for row, record in zip(task.rows("test"), map(json.loads, lines), strict=True):
        assert {name: row.ground_truth[name] for name in ROW} == {n: record[n] for n in ROW}
    assert len(task.rows("train")) == 1000
    for row in [*task.rows("train"), *task.rows("test")]:
        grid = [line.split(" ") for line in row.ground_truth["grid_text"].split("\n")]
        budget = row.ground_truth["max_steps"]
        start, end = tuple(row.ground_truth["start"]), tuple(row.ground_truth["end"])
        gold, diamond = (steps_from(grid, zone_corner(grid, symbol)) for symbol in "GD")
        via_gold, via_diamond = gold[start] + gold[end], diamond[start] + diamond[end]
        assert budget == max(via_gold, via_diamond) + 7
        assert gold[start] + gold[zone_corner(grid, "D")] + diamond[end] > budget
        assert steps_from(grid, end, avoided="#L")[start] <= budget
