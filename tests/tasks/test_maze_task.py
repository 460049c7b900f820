"""Rows, prompts and settings of the maze task."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from vpo_lightning.errors import ConfigError
from vpo_lightning.prompting import GoalConditioned, MultiAnswer, SingleAnswer
from vpo_lightning.tasks.maze.task import MazeTask

CONF = Path(__file__).parents[2] / "conf" / "task"
MAZE_FILES = ("maze", "maze_9x9_text")


def compact(**settings: object) -> MazeTask:
    return MazeTask(**{"size": 7, "style": "compact", "answers": "cells", **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", MAZE_FILES)
def test_the_shipped_settings_make_a_task_that_passes_its_check(name):
    settings = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    assert settings.pop("_target_") == f"{MazeTask.__module__}.{MazeTask.__name__}"
    task = MazeTask(**settings)
    task.check()
    assert len(task.rows("train")) == 16384
    assert len(task.rows("test")) == 256


@pytest.mark.parametrize("name", MAZE_FILES)
def test_every_parameter_is_in_the_shipped_settings(name):
    settings = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    assert set(settings) - {"_target_"} == set(MazeTask.__dataclass_fields__)


def test_rows_are_made_on_demand_and_stay_the_same():
    task = compact()
    rows, again = task.rows("train"), compact().rows("train")
    assert rows[16383] == again[16383] == rows[-1]
    assert rows[5:8] == [again[5], again[6], again[7]]
    assert len({row.id for row in rows[:100]}) == 100
    with pytest.raises(IndexError):
        rows[16384]


def test_rows_survive_json_and_pickle():
    row = compact().rows("test")[0]
    assert json.loads(json.dumps(row.ground_truth)) == row.ground_truth
    rows = pickle.loads(pickle.dumps(compact().rows("test")))
    assert rows[0] == row


def test_a_row_can_be_scored_from_its_ground_truth_alone():
    task = MazeTask(size=5, scoring="convex_bonus")
    row = task.rows("train")[0]
    assert task.row_from_ground_truth(row.id, row.ground_truth).ground_truth == row.ground_truth
    # The scoring that a row states rules, so that re-scoring does not depend on the settings.
    assert MazeTask(size=9).row_from_ground_truth("x", row.ground_truth).ground_truth == (
        row.ground_truth
    )


def test_an_unknown_split_is_refused():
    with pytest.raises(ConfigError, match="train and test"):
        compact().rows("validation")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 8}, r"task\.size=8: .*odd sizes"),
        ({"size": 0, "train_path": "a", "test_path": "b"}, r"task\.size=0: expected 1 or more"),
        ({"style": "short"}, r"task\.style='short': expected text or compact"),
        ({"answers": "words"}, r"task\.answers='words': expected moves or cells"),
        ({"answers": "cells"}, r"task\.answers=cells needs task\.style=compact"),
        ({"scoring": "convex"}, r"task\.scoring='convex': expected linear or convex_bonus"),
        ({"train_rows": 0}, r"task\.train_rows=0: expected 1 or more"),
        ({"construction": {"slack": "many"}}, r"task\.construction\.slack='many'"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_key(settings, message):
    with pytest.raises(ConfigError, match=message) as error:
        MazeTask(**settings)
    assert "\n" not in str(error.value)


def test_even_sizes_are_fine_where_nothing_is_generated():
    assert MazeTask(size=8, train_path="a.jsonl", test_path="b.jsonl").size == 8


def test_a_check_finds_numbers_that_no_maze_can_have():
    with pytest.raises(ConfigError, match=r"task\.construction"):
        compact(construction={"lava": [9, 9]}).check()


def test_a_compact_prompt_is_one_word_per_cell_and_one_for_the_form():
    task = compact()
    row = task.rows("train")[0]
    words = row.prompt.split()
    assert len(words) == 49
    symbols = "".join(row.ground_truth["grid_text"].split())
    assert words == [f"r{i // 7}c{i % 7}{symbol}" for i, symbol in enumerate(symbols)]
    for style, last in ((SingleAnswer(), "<one>"), (MultiAnswer(3), "<set>")):
        (message,) = style.messages(task, row)
        assert message["content"].split() == [*words, last]
    (message,) = GoalConditioned().messages(task, row, [0.4, 0.3, 0.2, 0.1])
    assert message["content"].split() == [*words, "<goal>", "4", "3", "2", "1", "<one>"]


@pytest.mark.parametrize("answers", ["cells", "moves"])
def test_the_vocabulary_holds_every_word_of_prompts_and_answers(answers):
    from random import Random

    from vpo_lightning.tasks.maze.demonstrations import RouteMix

    task, mix, rng = compact(answers=answers), RouteMix(), Random(0)
    vocabulary = task.vocabulary()
    assert len(vocabulary) == len(set(vocabulary))
    assert all(word == word.strip() and " " not in word for word in vocabulary)
    styles = [SingleAnswer(), MultiAnswer(3), GoalConditioned()]
    for row in task.rows("train")[:50]:
        for style in styles:
            weights = [0.25] * 4 if style.shows_weights else None
            (message,) = style.messages(task, row, weights)
            answer = style.render(task, [mix(row, rng) for _ in range(style.num_answers)])
            assert set(f"{message['content']} {answer}".split()) <= set(vocabulary)
    assert len(vocabulary) == 49 * 8 + (49 if answers == "cells" else 4) + 15


def test_the_text_style_has_no_vocabulary():
    with pytest.raises(ConfigError, match=r"set task\.style=compact"):
        MazeTask().vocabulary()


def test_a_text_prompt_states_grid_budget_rules_and_form():
    task = MazeTask()
    row = task.rows("train")[0]
    for style in (SingleAnswer(), MultiAnswer(3), GoalConditioned()):
        weights = [0.1, 0.2, 0.3, 0.4] if style.shows_weights else None
        (message,) = style.messages(task, row, weights)
        prompt = message["content"]
        assert row.ground_truth["grid_text"] in prompt
        assert f"At most {row.ground_truth['max_steps']} moves" in prompt
        for legend in ("S start", "E exit", "# wall", "G gold", "D diamond", "L lava"):
            assert legend in prompt
        assert ("<route_3>" if style.num_answers == 3 else "<answer>") in prompt
        if style.shows_weights:
            assert all(o.description in prompt for o in task.objectives)
            assert "40%" in prompt


def test_the_bonus_tile_is_explained_as_it_is_scored():
    linear = MazeTask().rows("train")[0].prompt
    convex = MazeTask(scoring="convex_bonus").rows("train")[0].prompt
    assert "B open floor with no effect" in linear
    assert "B bonus tile" in convex


def test_objectives_weigh_the_same():
    task = MazeTask()
    assert [o.name for o in task.objectives] == ["completion", "gold", "diamond", "avoid_lava"]
    row = task.rows("train")[0]
    assert task.scalar([1.0, 0.5, 0.0, 1.0], row) == pytest.approx(0.625)


def test_a_check_needs_no_torch():
    code = (
        "import sys; from vpo_lightning.tasks.maze.task import MazeTask; MazeTask().check();"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
