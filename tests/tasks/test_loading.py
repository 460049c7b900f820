import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vpo_lightning.errors import ConfigError
from vpo_lightning.task import PromptRow
from vpo_lightning.tasks.fields import Fields
from vpo_lightning.tasks.loading import LazyRows, OtherSplit, SkipRow, Source, join_rows, load_rows
from vpo_lightning.tasks.musique.task import MusiqueTask
from vpo_lightning.tasks.records import HubRecords, open_records
from vpo_lightning.tasks.text import multiset_f1, normalize_text, set_f1, word_f1

KEY = "task.train_path"
GOLDEN = json.loads((Path(__file__).parents[1] / "golden/text_and_parsing.json").read_text())


def write_lines(path: Path, *rows: Mapping[str, Any] | str) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def make_row(record: Fields, number: int) -> PromptRow:
    if record.has("skip"):
        raise SkipRow("asked to")
    return PromptRow(record.text("id"), f"row {number}", {}, ())


# Text


@pytest.mark.parametrize("case", GOLDEN["normalize_text"], ids=lambda c: repr(c["text"]))
def test_normalised_text_equals_the_golden_values(case):
    text = case["text"]
    assert normalize_text(text) == case["plain"]
    assert normalize_text(text, drop_articles=True) == case["strip_articles"]
    assert normalize_text(text, split_underscores=True) == case["underscores"]
    assert normalize_text(text, drop_articles=True, split_underscores=True) == case["both"]


@pytest.mark.parametrize("case", GOLDEN["f1"])
def test_word_f1_equals_the_golden_values(case):
    plain = word_f1(case["pred"], case["gold"])
    without = word_f1(case["pred"], case["gold"], drop_articles=True)
    assert plain == pytest.approx(case["token_f1"], abs=1e-9)
    assert without == pytest.approx(case["token_f1_strip_articles"], abs=1e-9)


@pytest.mark.parametrize("case", GOLDEN["set_f1_multiset_f1"])
def test_f1_of_collections_equals_the_golden_values(case):
    assert multiset_f1(case["pred"], case["gold"]) == pytest.approx(case["multiset_f1"], abs=1e-9)
    assert set_f1(case["pred"], case["gold"]) == pytest.approx(case["set_f1"], abs=1e-9)


# Files


def test_lines_are_read_on_demand_and_numbered_like_an_editor_does(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", {"id": "ä"}, "", {"id": "b"}, "not JSON")
    records = open_records(path, KEY)
    assert len(records) == 3
    assert records[1].text("id") == "b"
    assert records[0].text("id") == "ä"
    assert [record.text("id") for record in records[:2]] == ["ä", "b"]
    with pytest.raises(ConfigError, match=r"a\.jsonl, row 4 \(task\.train_path\): not complete"):
        _ = records[-1]
    with pytest.raises(IndexError):
        _ = records[3]


def test_parquet_rows_are_read_across_row_groups(tmp_path):
    table = pa.table({"id": [str(i) for i in range(10)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    records = open_records(tmp_path / "a.parquet", KEY)
    order = [9, 0, 4, 3, 8, 2, 5, 1, 7, 6]
    assert [records[i].text("id") for i in order] == [str(i) for i in order]


def write_bad(path: Path, kind: str) -> Path:
    path = path / f"bad{'.parquet' if 'parquet' in kind else '.jsonl'}"
    if kind == "folder":
        path.mkdir()
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "blank":
        path.write_bytes(b"\n \n")
    elif kind == "parquet cut in the middle":
        pq.write_table(pa.table({"id": ["a"] * 1000}), path)
        path.write_bytes(path.read_bytes()[:-40])
    elif kind == "parquet empty":
        pq.write_table(pa.table({"id": pa.array([], pa.string())}), path)
    return path


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("missing", "there is no such file"),
        ("folder", "is a folder"),
        ("empty", "holds no rows"),
        ("blank", "holds no rows"),
        ("parquet cut in the middle", "not a complete parquet file"),
        ("parquet empty", "holds no rows"),
    ],
)
def test_a_file_of_no_use_is_refused_in_one_line(tmp_path, kind, problem):
    path = write_bad(tmp_path, kind)
    with pytest.raises(ConfigError) as caught:
        open_records(path, KEY)
    assert problem in str(caught.value)
    assert f"{KEY}={path}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_of_another_kind_is_refused():
    with pytest.raises(ConfigError, match=r"ends in \.jsonl or \.parquet"):
        open_records("rows.csv", KEY)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"id": "a", "question": "cut in the mi', "not complete JSON at column"),
        ('["a"]', "expected a JSON object, got list"),
        ("[" * 100_000, "row 2"),
        ('{"other": 1}', "field id is missing; expected text"),
        ('{"id": 7}', "field id is 7; expected text"),
        ('{"id": null}', "field id is None; expected text"),
        ('{"id": "first"}', "the id 'first' is that of row 1 too"),
    ],
)
def test_a_malformed_row_is_refused_with_file_row_field_and_key(tmp_path, line, problem):
    path = write_lines(tmp_path / "a.jsonl", {"id": "first"}, line)
    with pytest.raises(ConfigError) as caught:
        load_rows(open_records(path, KEY), make_row)
    message = str(caught.value)
    assert problem in message
    assert f"{path}, row 2" in message
    assert KEY in message
    assert "\n" not in message


def test_a_line_that_is_not_utf8_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"id": "\xff"}\n')
    with pytest.raises(ConfigError, match=r"row 1 .*UTF-8"):
        load_rows(open_records(tmp_path / "a.jsonl", KEY), make_row)


def test_fields_inside_a_row_are_named_by_their_path():
    fields = Fields({"steps": [{"index": 1}, {"index": True}], "words": ["a", 2]}, "a, row 3 (k)")
    with pytest.raises(ConfigError, match=r"a, row 3 \(k\): field steps\[1\]\.index is True"):
        [step.integer("index") for step in fields.objects("steps")]
    with pytest.raises(ConfigError, match=r"field words\[1\] is 2; expected text"):
        fields.texts("words")
    with pytest.raises(ConfigError, match=r"field words is .*; expected an object"):
        fields.inner("words")


# Rows


def test_rows_that_are_left_out_are_counted_and_logged(tmp_path, caplog):
    path = write_lines(tmp_path / "a.jsonl", {"id": "a"}, {"id": "b", "skip": 1}, {"id": "c"})
    rows = load_rows(open_records(path, KEY), make_row, lambda row: {"halves": row.id == "c"})
    assert [row.id for row in rows] == ["a", "c"]
    assert rows.counts == {"rows: asked to": 1, "halves": 1}
    assert "left out 1: rows: asked to" in caplog.text
    with pytest.raises(ConfigError, match="no row is left"):
        load_rows(open_records(write_lines(path, {"id": "b", "skip": 1}), KEY), make_row)


def test_rows_of_the_other_split_are_told_but_are_no_warning(tmp_path, caplog):
    def make(record: Fields, number: int) -> PromptRow:
        if record.has("skip"):
            raise OtherSplit("for testing")
        return PromptRow(record.text("id"), "", {}, ())

    caplog.set_level(logging.INFO)
    path = write_lines(tmp_path / "a.jsonl", {"id": "a"}, {"id": "b", "skip": 1})
    assert load_rows(open_records(path, KEY), make).counts == {"rows: for testing": 1}
    assert [(r.levelname, "left out 1" in r.message) for r in caplog.records] == [("INFO", True)]


def test_rows_are_made_when_asked_for():
    made: list[int] = []

    def make(item: int) -> PromptRow:
        made.append(item)
        return PromptRow(str(item), "", {}, ())

    rows = LazyRows(range(100), make)
    assert len(rows) == 100
    assert not made
    assert [row.id for row in rows[2:4]] == ["2", "3"]
    assert made == [2, 3]
    assert rows[-1].id == "99"
    joined = join_rows(rows.select([5, 3]), LazyRows(range(2), make))
    assert [row.id for row in joined] == ["5", "3", "0", "1"]
    assert joined.select([2, 0])[1].id == "5"


def test_a_split_comes_from_its_file_or_else_from_the_authored_rows(tmp_path):
    write_lines(tmp_path / "train.jsonl", {"id": "authored"})
    write_lines(tmp_path / "test.jsonl", {"id": "authored"})
    path = write_lines(tmp_path / "own.jsonl", {"id": "own"})
    source = Source(tmp_path, train_path=str(path))
    assert source.records("train")[0].text("id") == "own"
    assert source.records("test")[0].text("id") == "authored"
    with pytest.raises(ConfigError, match="splits train and test"):
        source.records("validation")


def test_a_setting_of_another_type_is_refused_by_its_key():
    with pytest.raises(ConfigError, match=r"task\.test_seed='x': expected a whole number"):
        MusiqueTask(test_seed="x")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"task\.test_per_hop=True: expected a whole number or"):
        MusiqueTask(test_per_hop=True)
    with pytest.raises(ConfigError, match=r"task\.train_path=3: expected text or null"):
        MusiqueTask(train_path=3)  # type: ignore[arg-type]


# The hub


def test_a_hub_id_without_the_library_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"pip install vpo-lightning\[hub\]"):
        MusiqueTask(hub_id="some/data").check()


def test_splits_of_a_hub_data_set_are_read(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    authored = Path(sys.modules[MusiqueTask.__module__].__file__ or "").parent / "data"
    folder = tmp_path / "hub"
    folder.mkdir()
    (folder / "train.jsonl").write_text((authored / "train.jsonl").read_text())
    (folder / "validation.jsonl").write_text((authored / "test.jsonl").read_text())
    task, own = MusiqueTask(hub_id=str(folder)), MusiqueTask()
    for split in ("train", "test"):
        assert [row.prompt for row in task.rows(split)] == [row.prompt for row in own.rows(split)]
    with pytest.raises(ConfigError, match=r"task\.hub_id=.*: the split questions cannot be loaded"):
        HubRecords(str(folder), "questions")


def test_our_permutation_is_the_one_of_the_hub_library():
    datasets = pytest.importorskip("datasets")
    shuffled = datasets.Dataset.from_dict({"i": list(range(1363))}).shuffle(seed=0)["i"]
    assert list(shuffled) == np.random.default_rng(0).permutation(1363).tolist()


# Large files


@pytest.mark.slow
def test_a_large_file_is_loaded_in_seconds_and_little_memory(tmp_path):
    import resource
    import time

    line = json.dumps({"id": "%d", "text": "x" * 10_000})
    with (tmp_path / "big.jsonl").open("w") as file:
        file.writelines(line.replace("%d", str(i)) + "\n" for i in range(20_000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    rows = load_rows(open_records(tmp_path / "big.jsonl", KEY), make_row)
    assert time.perf_counter() - started < 10
    assert rows[19_999].id == "19999"
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert kibibytes < 50_000, "the file has 200 MB"
