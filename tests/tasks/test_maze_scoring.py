"""Routes: parsed, walked and scored, by hand, by golden values and by an independent walker."""

import json
import random
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpo_lightning.prompting import MultiAnswer, SingleAnswer
from vpo_lightning.scoring import score_answers
from vpo_lightning.task import PromptRow
from vpo_lightning.tasks.maze.demonstrations import RouteMix
from vpo_lightning.tasks.maze.grid import MOVES, Maze
from vpo_lightning.tasks.maze.routes import (
    cell_names,
    parse_cells,
    parse_moves,
    reward_vector,
    walk_cells,
    walk_moves,
    write_cells,
    write_moves,
)
from vpo_lightning.tasks.maze.task import MazeTask

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = json.loads((GOLDEN / "maze.json").read_text())["cases"]
# Whole records, without the one that the reference refuses: our prompts cannot express it.
DISPATCH = [
    case
    for case in json.loads((GOLDEN / "dispatch.json").read_text())["cases"]
    if case["data_source"] == "maze" and not case["expected"].get("raises")
]
GRID = "S . G\n# L D\n. B E"
TOLERANCE = 1e-9  # the reference computes in float64 too


def truth(grid_text: str = GRID, max_steps: int = 8, **other: object) -> dict[str, object]:
    cells = "".join(grid_text.split())
    size = grid_text.count("\n") + 1
    return {
        "grid_text": grid_text,
        "start": list(divmod(cells.index("S"), size)),
        "end": list(divmod(cells.index("E"), size)),
        "max_steps": max_steps,
        **other,
    }


def row(task: MazeTask, grid_text: str = GRID, max_steps: int = 8) -> PromptRow:
    return task.row_from_ground_truth("case", truth(grid_text, max_steps))


def moves_task(scoring: str = "linear") -> MazeTask:
    return MazeTask(scoring=scoring)


def cells_task(size: int = 3) -> MazeTask:
    # The files exist only in name: this task scores rows that it is given.
    return MazeTask(size=size, style="compact", answers="cells", train_path="a", test_path="b")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_golden_rewards_are_reproduced(case):
    task = moves_task()
    prompt_row = task.row_from_ground_truth(case["id"], case["ground_truth"])
    if case["expected"].get("raises"):
        # Departure from the reference, which raises: text that is not there scores zero.
        assert case["text"] is None
        assert score_answers(task, prompt_row, [None]).matrix == [[0.0] * 4]
        return
    style = MultiAnswer(case["m"]) if case["mode"] == "multi" else SingleAnswer()
    scored = score_answers(task, prompt_row, style.parse(task, case["text"]))
    expected = case["expected"]
    if case["mode"] == "multi":
        assert scored.matrix == [pytest.approx(v, abs=TOLERANCE) for v in expected["sub_scores"]]
        assert scored.num_parsed == expected["num_parsed"]
        assert task.set_scalar(scored.matrix, prompt_row) == pytest.approx(
            expected["scalar"], abs=TOLERANCE
        )
    else:
        (vector,) = scored.matrix
        assert vector == pytest.approx(expected["sub_scores"], abs=TOLERANCE)
        assert task.scalar(vector, prompt_row) == pytest.approx(expected["scalar"], abs=TOLERANCE)


@pytest.mark.parametrize("case", DISPATCH, ids=lambda case: case["id"])
def test_golden_records_are_reproduced(case):
    task = moves_task()
    given_truth = case["ground_truth"]
    given_truth = json.loads(given_truth) if isinstance(given_truth, str) else given_truth
    prompt_row = task.row_from_ground_truth(case["id"], given_truth)
    m = (case["extra_info"] or {}).get("num_solutions", 0)
    style = MultiAnswer(m) if m > 1 else SingleAnswer()
    matrix = score_answers(task, prompt_row, style.parse(task, case["text"])).matrix
    expected = case["expected"]
    weights = given_truth.get("weights", [0.25] * 4)
    if m > 1:
        assert matrix == expected["sub_scores"]
        assert task.set_scalar(matrix, prompt_row) == pytest.approx(
            expected["score"], abs=TOLERANCE
        )
    else:
        assert matrix == [expected["sub_scores"]]
        score = sum(w * r for w, r in zip(weights, matrix[0], strict=True))
        assert score == pytest.approx(expected["score"], abs=TOLERANCE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("RIGHT RIGHT DOWN DOWN", "RRDD"),
        ("right, Down; uP-left", "RDUL"),
        ('["UP","DOWN"]', "UD"),
        ("UPWARD RIGHTS DOWNTOWN LEFTOVER", ""),
        ("UP_LEFT 2UP", ""),
        ("→ ↓", ""),
        ("", ""),
        ("GO\nRIGHT\tDOWN", "RD"),
    ],
)
def test_moves_are_whole_words_in_any_case(text, expected):
    assert "".join(MOVES[move][0] for move in parse_moves(text)) == expected


@given(st.text())
def test_any_text_can_be_parsed(text):
    assert all(0 <= move < 4 for move in parse_moves(text))
    assert all(0 <= cell < 49 for cell in parse_cells(text, 7))


@given(st.lists(st.integers(0, 3)), st.sampled_from([" ", ", ", "\n", " -> "]))
def test_written_moves_are_parsed_again(moves, separator):
    assert parse_moves(separator.join(MOVES[m] for m in moves)) == tuple(moves)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("r0c0 r0c1 r2c2", (0, 1, 8)),
        ("r0c1 r3c0 r0c2", (1,)),  # no such cell in a grid of 3
        ("r0c1 RIGHT r0c2", (1,)),
        ("r0c1. r0c2", ()),  # the word of a prompt, not of an answer
        ("R0C1", ()),
        ("<set>", ()),
        ("", ()),
    ],
)
def test_cells_are_read_up_to_the_first_other_word(text, expected):
    assert parse_cells(text, 3) == expected


def test_a_word_for_every_cell():
    assert cell_names(3) == tuple(f"r{r}c{c}" for r in range(3) for c in range(3))
    assert len(set(cell_names(15))) == 225


@pytest.mark.parametrize(
    ("route", "linear", "convex"),
    [
        ("RIGHT RIGHT DOWN DOWN", [1, 1, 1, 1], [1, 1, 1, 1]),
        ("RIGHT DOWN DOWN RIGHT", [1, 0, 0, 0], [1, 0, 0, 0]),
        ("RIGHT DOWN RIGHT DOWN", [1, 0, 1, 0], [1, 0, 1, 0]),
        ("RIGHT RIGHT DOWN", [0, 0, 0, 0], [0, 0, 0, 0]),  # stops before the end
        ("DOWN UP LEFT RIGHT RIGHT RIGHT DOWN DOWN", [1, 1, 1, 1], [1, 1, 1, 1]),  # blocked thrice
        ("LEFT LEFT LEFT LEFT LEFT RIGHT RIGHT DOWN DOWN", [0, 0, 0, 0], [0, 0, 0, 0]),  # too long
        ("RIGHT RIGHT DOWN DOWN LEFT UP", [1, 1, 1, 1], [1, 1, 1, 1]),  # ended before
    ],
)
def test_rewards_by_hand(route, linear, convex):
    for scoring, expected in (("linear", linear), ("convex_bonus", convex)):
        task = moves_task(scoring)
        assert task.score(route, row(task)) == expected


def test_shares_squares_and_bonus_by_hand():
    # Two gold, one of them taken; two diamonds, none; three lava tiles, one entered; the bonus.
    grid = "S G B L E\n. # . . .\nG D . L L\n# # . . .\n. D . . ."
    route = "RIGHT RIGHT RIGHT RIGHT"
    linear, convex = moves_task(), moves_task("convex_bonus")
    assert linear.score(route, row(linear, grid)) == pytest.approx([1, 1 / 2, 0, 2 / 3])
    assert convex.score(route, row(convex, grid)) == pytest.approx([1, 3 / 8, 0, 2 / 3])
    around = "DOWN DOWN UP UP RIGHT RIGHT DOWN RIGHT RIGHT UP"
    assert convex.score(around, row(convex, grid, 10)) == [1.0, 1.0, 0.0, 1.0]  # at most 1
    assert convex.score(around, row(convex, grid, 9)) == [0.0, 0.0, 0.0, 0.0]


def test_a_maze_without_items_gives_none_and_one_without_lava_cannot_be_burnt():
    for scoring in ("linear", "convex_bonus"):
        task = moves_task(scoring)
        assert task.score("RIGHT DOWN", row(task, "S .\n. E", 4)) == [1.0, 0.0, 0.0, 1.0]


def test_a_ground_truth_that_states_its_scoring_is_scored_so():
    task = moves_task()
    grid = "S G B\nG # .\n# . E"
    route = "RIGHT RIGHT DOWN DOWN"
    stated = task.row_from_ground_truth("x", truth(grid, score_mode="convex_bonus"))
    assert task.score(route, stated) == pytest.approx([1, 0.375, 0, 1])
    assert task.score(route, row(task, grid)) == pytest.approx([1, 0.5, 0, 1])


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        ("r0c1 r0c2 r1c2 r2c2", [1, 1, 1, 1]),
        ("r0c1 r1c1 r2c1 r2c2", [1, 0, 0, 0]),
        ("r0c1 r0c2 r1c2 r2c2 r0c0 nonsense", [1, 1, 1, 1]),  # ended before
        ("r0c1 r0c2 r2c2", [0, 0, 0, 0]),  # not beside
        ("r0c0 r0c1 r0c2 r1c2 r2c2", [0, 0, 0, 0]),  # the start is not entered
        ("r1c0 r2c0 r2c1 r2c2", [0, 0, 0, 0]),  # through a wall
        ("r0c1 r0c1 r0c2 r1c2 r2c2", [0, 0, 0, 0]),  # staying enters no cell
        ("r0c1 r0c0 r0c1 r0c0 r0c1 r0c2 r1c2 r2c2", [1, 1, 1, 1]),  # 8 of 8
        ("r0c1 r0c0 r0c1 r0c0 r0c1 r0c0 r0c1 r0c2 r1c2 r2c2", [0, 0, 0, 0]),  # 10 of 8
    ],
)
def test_rewards_of_cells_by_hand(route, expected):
    task = cells_task()
    assert task.score(route, row(task)) == expected


def test_the_last_move_of_the_budget_counts_and_the_next_does_not():
    for task, route in (
        (moves_task(), "RIGHT RIGHT DOWN DOWN"),
        (cells_task(), "r0c1 r0c2 r1c2 r2c2"),
    ):
        assert task.score(route, row(task, GRID, 4)) == [1.0] * 4
    longer = "r0c1 r0c0 r0c1 r0c2 r1c2 r2c2"
    assert cells_task().score(longer, row(cells_task(), GRID, 6)) == [1.0] * 4
    assert cells_task().score(longer, row(cells_task(), GRID, 5)) == [0.0] * 4


def test_rows_do_not_wrap_around_the_border():
    # r0c2 and r1c0 have consecutive numbers but are not beside each other.
    task = cells_task()
    assert (
        task.score("r0c1 r0c2 r1c0 r2c0 r2c1 r2c2", row(task, "S . G\n. L D\n. B E")) == [0.0] * 4
    )


def naive_rewards(maze: Maze, moves: list[str], convex: bool) -> list[float]:
    """The rules once more, on coordinates."""
    grid = [line.split(" ") for line in maze.text.split("\n")]
    row_, column = divmod(maze.cells.index("S"), maze.size)
    seen = {(row_, column)}
    for move in moves[: maze.budget]:
        down, right = {"UP": (-1, 0), "DOWN": (1, 0), "LEFT": (0, -1), "RIGHT": (0, 1)}[move]
        r, c = row_ + down, column + right
        if 0 <= r < maze.size and 0 <= c < maze.size and grid[r][c] != "#":
            row_, column = r, c
        seen.add((row_, column))
        if grid[row_][column] == "E":
            break
    if grid[row_][column] != "E":
        return [0.0] * 4
    shares: dict[str, float] = {}
    for symbol in "GDL":
        tiles = [(r, c) for r, line in enumerate(grid) for c, s in enumerate(line) if s == symbol]
        shares[symbol] = sum(tile in seen for tile in tiles) / len(tiles) if tiles else 0.0
    vector = [1.0, shares["G"], shares["D"], 1 - shares["L"]]
    if convex:
        bonus = 1.5 if any(grid[r][c] == "B" for r, c in seen) else 1.0
        vector = [min(1.0, v**2 * bonus) for v in vector]
    return vector


@pytest.mark.parametrize("convex", [False, True])
def test_random_and_good_routes_score_as_an_independent_walker_says(convex):
    task = MazeTask(size=7, scoring="convex_bonus" if convex else "linear")
    rows, rng, mix = task.rows("train"), random.Random(0), RouteMix()
    reached = 0
    for index in range(400):
        prompt_row = rows[index]
        maze = Maze.from_text(
            prompt_row.ground_truth["grid_text"], prompt_row.ground_truth["max_steps"]
        )
        routes = [[rng.choice(MOVES) for _ in range(rng.randrange(60))] for _ in range(4)]
        routes += [mix(prompt_row, rng).split() for _ in range(4)]
        for route in routes:
            expected = naive_rewards(maze, route, convex)
            assert task.score(" ".join(route), prompt_row) == pytest.approx(expected, abs=1e-12)
            reached += expected[0] > 0
    assert reached > 1600


@given(st.integers(0, 50), st.integers(0, 2**32))
def test_moves_and_cells_of_one_walk_earn_the_same(index, seed):
    maze_row = MazeTask(size=7).rows("train")[index]
    maze = Maze.from_text(maze_row.ground_truth["grid_text"], maze_row.ground_truth["max_steps"])
    cells = RouteMix().route(maze, random.Random(seed))
    by_moves = walk_moves(maze, parse_moves(write_moves(cells, maze)))
    by_cells = walk_cells(maze, parse_cells(write_cells(cells, 7), 7))
    assert by_moves == by_cells == [maze.start, *cells]
    assert reward_vector(maze, by_moves)[0] == 1.0


@given(st.integers(0, 30), st.lists(st.integers(0, 3), max_size=40))
def test_rewards_are_in_the_unit_interval_and_all_zero_or_complete(index, moves):
    maze_row = MazeTask(size=5).rows("test")[index]
    maze = Maze.from_text(maze_row.ground_truth["grid_text"], maze_row.ground_truth["max_steps"])
    walk = walk_moves(maze, tuple(moves))
    for convex in (False, True):
        rewards = reward_vector(maze, walk, convex_bonus=convex)
        assert all(0 <= reward <= 1 for reward in rewards)
        assert rewards[0] == 1 or rewards == [0.0] * 4
    assert len(walk) <= maze.budget + 1


def test_duplicates_are_equal_move_lists_however_they_are_written():
    task = moves_task()
    texts = ["RIGHT RIGHT DOWN DOWN", "right,right,down,down!", "UP RIGHT RIGHT DOWN DOWN", "zzz"]
    scored = score_answers(task, row(task), texts)
    assert [answer.is_duplicate for answer in scored.answers] == [False, True, False, False]
    assert [answer.is_parsed for answer in scored.answers] == [True, True, True, False]
    assert scored.matrix == [[1.0] * 4, [1.0] * 4, [0.0] * 4, [0.0] * 4]


def test_a_route_without_moves_is_dropped_and_later_ones_move_forward():
    task = moves_task()
    scored = score_answers(task, row(task), ["zzz", "RIGHT RIGHT DOWN DOWN", None])
    assert scored.matrix == [[1.0] * 4, [0.0] * 4, [0.0] * 4]
    kept = score_answers(task, row(task), ["zzz", "RIGHT RIGHT DOWN DOWN", None], deduplicate=False)
    assert kept.matrix == [[0.0] * 4, [1.0] * 4, [0.0] * 4]


@pytest.mark.slow
@pytest.mark.parametrize("style", ["compact", "text"])
def test_scoring_the_chains_of_a_step_takes_milliseconds(style):
    task = MazeTask(size=7, style=style, answers="cells" if style == "compact" else "moves")
    rows, rng, mix = task.rows("train")[:24], random.Random(0), RouteMix()
    chains = [(r, [mix(r, rng) for _ in range(3)]) for r in rows for _ in range(8)]
    began = time.process_time()
    for prompt_row, answers in chains:
        score_answers(task, prompt_row, answers)
    assert time.process_time() - began < 0.05  # aim 15 ms on one idle core
