"""The construction's guarantees, checked by code that shares nothing with the generator."""

import random
import time

import pytest

from tests.tasks.maze_search import grid_of, manhattan, places, steps_from, zone_corner
from vpo_lightning.errors import ConfigError
from vpo_lightning.tasks.maze.construction import Construction
from vpo_lightning.tasks.maze.generation import generate
from vpo_lightning.tasks.maze.grid import FAR, Maze
from vpo_lightning.tasks.maze.rows import draw_maze

SIZES = (5, 7, 9, 11, 13, 15)
# Openings, items, lava, item radius, lava margin, slack of every size.
NUMBERS = {
    5: ((4, 7), (2, 3), (1, 2), 1, 1, 3),
    7: ((10, 15), (3, 5), (2, 4), 2, 2, 5),
    9: ((18, 28), (3, 5), (3, 5), 2, 2, 7),
    11: ((27, 42), (3, 5), (3, 5), 2, 2, 7),
    13: ((38, 58), (3, 5), (3, 5), 2, 2, 7),
    15: ((50, 78), (3, 5), (3, 5), 2, 2, 7),
}


def draw(size: int, index: int, construction: Construction | None = None) -> Maze:
    return generate(size, construction or Construction.of(size), random.Random(index))


@pytest.mark.parametrize("size", SIZES)
def test_every_maze_keeps_the_guarantees_of_its_size(size):
    _, items, lava, radius, margin, slack = NUMBERS[size]
    for index in range(300):
        maze = draw(size, index)
        grid = grid_of(maze)
        assert len(grid) == size
        assert {len(row) for row in grid} == {size}
        (start,), (end,) = places(grid, "S"), places(grid, "E")
        last = size - 1
        assert {start, end} in ({(0, 0), (last, last)}, {(0, last), (last, 0)})
        gold, diamond = zone_corner(grid, "G"), zone_corner(grid, "D")
        assert gold != diamond
        for symbol, corner in (("G", gold), ("D", diamond)):
            found = places(grid, symbol)
            assert items[0] <= len(found) <= items[1]
            assert all(manhattan(corner, item) <= radius for item in found)
        assert places(grid, "B") == {(size // 2, size // 2)}
        tiles = places(grid, "L")
        assert lava[0] <= len(tiles) <= lava[1]
        assert all(margin <= r <= last - margin and margin <= c <= last - margin for r, c in tiles)

        from_start, to_end = steps_from(grid, start), steps_from(grid, end)
        from_gold, from_diamond = steps_from(grid, gold), steps_from(grid, diamond)
        via_gold = from_start[gold] + from_gold[end]
        via_diamond = from_start[diamond] + from_diamond[end]
        assert maze.budget == max(via_gold, via_diamond) + slack
        assert from_start[gold] + from_gold[diamond] + from_diamond[end] > maze.budget
        assert from_start[diamond] + from_diamond[gold] + from_gold[end] > maze.budget
        assert steps_from(grid, end, avoided="#L")[start] <= maze.budget
        assert to_end[start] <= maze.budget
        wanted = {cell for symbol in "GDLB" for cell in places(grid, symbol)}
        assert wanted <= set(from_start)


@pytest.mark.parametrize("size", SIZES)
def test_the_openings_are_within_their_range(size):
    (least, most), *_ = NUMBERS[size]
    lattice = (size + 1) // 2
    perfect = 2 * lattice**2 - 1  # cells and passages of a perfect maze
    centre_is_pillar = size // 2 % 2 == 1
    for index in range(100):
        grid = grid_of(draw(size, index))
        opened = size * size - len(places(grid, "#")) - perfect
        assert least <= opened <= most + centre_is_pillar
        walls = places(grid, "#")
        assert all(r % 2 or c % 2 for r, c in walls)
        # A wall between four passages is opened only where two of them are open.
        for r, c in {(r, c) for r in range(1, size, 2) for c in range(1, size, 2)} - walls:
            closed = walls & {(r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1)}
            assert len(closed) <= 2 or grid[r][c] == "B"


def test_without_openings_the_open_cells_form_a_perfect_maze():
    # Size 9: the centre is one of the lattice's cells, so nothing but Prim's algorithm opens walls.
    construction = Construction.of(9, {"openings": [0, 0], "lava": [0, 0], "slack": 0})
    for index in range(50):
        grid = grid_of(draw(9, index, construction))
        cells = {(r, c) for r in range(9) for c in range(9) if grid[r][c] != "#"}
        right = sum((r, c + 1) in cells for r, c in cells)
        down = sum((r + 1, c) in cells for r, c in cells)
        assert right + down == len(cells) - 1
        floor = [["#" if symbol == "#" else "." for symbol in row] for row in grid]
        assert set(steps_from(floor, (0, 0))) == cells


def test_everything_can_be_reached_even_where_few_walls_are_open():
    # At size 7 the bonus tile stands between four passages, which may all be walls.
    construction = Construction.of(7, {"openings": [0, 0], "slack": 2, "items": [1, 5]})
    for index in range(100):
        grid = grid_of(draw(7, index, construction))
        (start,) = places(grid, "S")
        wanted = {cell for symbol in "EGDLB" for cell in places(grid, symbol)}
        assert wanted <= set(steps_from(grid, start))


def test_all_four_corners_serve_as_start_and_both_sides_as_gold():
    mazes = [grid_of(draw(5, index)) for index in range(200)]
    starts = [next(iter(places(grid, "S"))) for grid in mazes]
    corners = {(0, 0), (0, 4), (4, 0), (4, 4)}
    assert {(start, zone_corner(grid, "G")) for start, grid in zip(starts, mazes, strict=True)} == {
        (start, gold)
        for start in corners
        for gold in corners - {start, (4 - start[0], 4 - start[1])}
    }


def test_a_maze_is_the_same_for_the_same_seed_split_and_index():
    numbers = Construction.of(7)
    first = [draw_maze(7, numbers, 3, "train", i) for i in range(20)]
    again = [draw_maze(7, numbers, 3, "train", i) for i in reversed(range(20))]
    assert first == again[::-1]
    assert len(set(first)) == 20
    others = [draw_maze(7, numbers, 4, "train", i) for i in range(20)]
    assert not set(first) & set(others)


def test_a_known_seed_gives_a_known_maze():
    # The same in every Python version: the generator uses random() only.
    maze = draw_maze(5, Construction.of(5), 0, "train", 0)
    assert maze == Maze(5, "DD..SDL.#...BL.#...GE..G.", budget=13)


def test_no_grid_is_in_both_splits_even_where_grids_repeat():
    numbers = Construction.of(5)
    train = {draw_maze(5, numbers, 0, "train", i).cells for i in range(2048)}
    test = [draw_maze(5, numbers, 0, "test", i).cells for i in range(256)]
    assert len(train) < 2048  # grids of this size do repeat
    assert not train.intersection(test)


def test_construction_numbers_are_those_of_the_size():
    for size, numbers in NUMBERS.items():
        of_size = Construction.of(size)
        assert numbers == (
            of_size.openings,
            of_size.items,
            of_size.lava,
            of_size.item_radius,
            of_size.lava_margin,
            of_size.slack,
        )


def test_changed_numbers_are_kept_and_null_means_the_default():
    changes = {"slack": 6, "items": [1, 1], "lava": None}
    construction = Construction.of(7, changes)
    assert (construction.slack, construction.items, construction.lava) == (6, (1, 1), (2, 4))
    maze = draw(7, 0, construction)
    assert len(maze.gold) == len(maze.diamonds) == 1


@pytest.mark.parametrize("size", [4, 6, 8, 10, 3, 17, 0, -5])
def test_other_sizes_are_refused_by_key(size):
    with pytest.raises(ConfigError, match=r"task\.size=.*odd sizes from 5 to 15"):
        Construction.of(size)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slack", -1),
        ("slack", 1.5),
        ("slack", True),
        ("items", 3),
        ("items", [3]),
        ("items", [5, 3]),
        ("lava", "12"),
        ("lava", [1, "2"]),
        ("opening", [1, 2]),
    ],
)
def test_bad_numbers_are_refused_by_key(name, value):
    with pytest.raises(ConfigError, match=rf"task\.construction\.{name}") as error:
        Construction.of(7, {name: value})
    assert "\n" not in str(error.value)


def test_numbers_that_no_maze_can_have_are_refused_and_not_tried_for_ever():
    with pytest.raises(ConfigError, match=r"task\.construction: none of 1000 mazes"):
        draw(5, 0, Construction.of(5, {"lava": [9, 9]}))
    with pytest.raises(ConfigError, match=r"task\.construction: none of 1000 mazes"):
        draw(5, 0, Construction.of(5, {"slack": 30}))


def test_distances_agree_with_an_independent_search():
    for index in range(30):
        maze = draw(9, index)
        grid = grid_of(maze)
        for source in range(0, 81, 7):
            if maze.cells[source] == "#":
                continue
            for blocked in ("#", "#L"):
                expected = steps_from(grid, divmod(source, 9), avoided=blocked)
                found = maze.distances(source, blocked)
                reached = {divmod(c, 9): steps for c, steps in enumerate(found) if steps < FAR}
                assert reached == expected


def test_no_shortest_walk_crosses_the_end():
    # The way from S to G leads through E, so G cannot be reached.
    maze = Maze.from_text("S # #\n. E G\n# # #", 9)
    assert maze.distances(maze.start)[maze.end] == 2
    assert maze.distances(maze.start)[5] >= FAR
    assert maze.distances(maze.end)[5] == 1


def test_a_maze_survives_its_text():
    maze = draw(11, 4)
    assert Maze.from_text(maze.text, maze.budget) == maze


@pytest.mark.slow
def test_a_thousand_mazes_take_less_than_three_seconds():
    numbers = Construction.of(9)
    began = time.process_time()
    for index in range(1000):
        generate(9, numbers, random.Random(index))
    assert time.process_time() - began < 3
    began = time.process_time()
    for index in range(1000):
        generate(7, Construction.of(7), random.Random(index))
    assert time.process_time() - began < 0.6 * 2  # aim .6 ms; twice that on a busy machine
