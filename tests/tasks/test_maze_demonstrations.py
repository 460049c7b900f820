"""Demonstration routes: what every route keeps, and what the mix offers."""

import time
from dataclasses import astuple
from random import Random
from statistics import mean

import pytest

from vpo_lightning.errors import ConfigError
from vpo_lightning.tasks.maze.demonstrations import RouteMix
from vpo_lightning.tasks.maze.rows import maze_of
from vpo_lightning.tasks.maze.task import MazeTask

GOLD, DIAMOND = RouteMix(direct=0.0, diamond=0.0), RouteMix(direct=0.0, gold=0.0)


def task_of(size: int = 7) -> MazeTask:
    return MazeTask(size=size, style="compact", answers="cells")


@pytest.mark.parametrize("size", [5, 7, 9, 11])
def test_every_route_reaches_the_end_within_the_budget(size):
    task, rng, mix = task_of(size), Random(0), RouteMix(detour_probabilities=(0.0, 0.25, 1.0))
    for row in task.rows("train")[:150]:
        maze = maze_of(row)
        for _ in range(6):
            answer = mix(row, rng)
            assert task.score(answer, row)[0] == 1.0
            assert len(answer.split()) <= maze.budget


@pytest.mark.parametrize("size", [5, 7, 9])
@pytest.mark.parametrize(("mix", "component"), [(GOLD, 1), (DIAMOND, 2)])
def test_routes_by_way_of_a_zone_collect_at_least_half_of_it(size, mix, component):
    task, rng = task_of(size), Random(0)
    shares = [task.score(mix(row, rng), row)[component] for row in task.rows("train")[:300]]
    # Behind lava, or too far apart, some zones cannot be served: those routes go straight on.
    assert mean(share >= 0.5 for share in shares) > 0.97
    assert mean(shares) > 0.9


def test_half_of_the_routes_are_asked_to_avoid_lava_and_do():
    task, rng = task_of(), Random(0)
    rows = task.rows("train")[:300]
    careful = RouteMix(avoid_lava=1.0)
    assert all(task.score(careful(row, rng), row)[3] == 1.0 for row in rows)
    careless = RouteMix(direct=1.0, gold=0.0, diamond=0.0, avoid_lava=0.0)
    assert mean(task.score(careless(row, rng), row)[3] == 1.0 for row in rows) < 0.9


def test_the_mix_covers_both_sides_of_the_conflict():
    task, rng, mix = task_of(), Random(0), RouteMix()
    covered, best, single = [], [], []
    for row in task.rows("test")[:200]:
        vectors = [task.score(mix(row, rng), row) for _ in range(30)]
        covered.append(any(v[1] >= 0.5 for v in vectors) and any(v[2] >= 0.5 for v in vectors))
        best.append(max(mean(v) for v in vectors))
        single.append(mean(vectors[0]))
    assert mean(covered) > 0.97
    assert mean(best) > 0.74  # nearly no maze offers more than one whole side: .75
    assert 0.55 < mean(single) < 0.7


def test_one_kind_of_route_can_be_asked_for_alone():
    task, rng = task_of(), Random(0)
    direct = RouteMix(
        direct=1.0, gold=0.0, diamond=0.0, detour_probabilities=(0.0,), avoid_lava=0.0
    )
    for row in task.rows("train")[:50]:
        maze = maze_of(row)
        assert len(direct(row, rng).split()) == maze.distances(maze.end)[maze.start]


def test_detours_make_routes_longer():
    task = task_of()
    lengths = {
        probability: mean(
            len(RouteMix(detour_probabilities=(probability,))(row, Random(1)).split())
            for row in task.rows("train")[:200]
        )
        for probability in (0.0, 0.25)
    }
    assert lengths[0.25] > lengths[0.0] + 0.5


def test_detours_never_enter_the_end_while_there_are_moves_for_another():
    task = MazeTask(size=2, train_path="a.jsonl", test_path="b.jsonl")
    truth = {"grid_text": "S .\n. E", "start": [0, 0], "end": [1, 1], "max_steps": 8}
    row = task.row_from_ground_truth("x", truth)
    wandering = RouteMix(detour_probabilities=(1.0,))
    assert {len(wandering(row, Random(seed)).split()) for seed in range(50)} == {8}


def test_a_way_to_an_item_does_not_pass_through_the_end():
    task = MazeTask(size=3, train_path="a.jsonl", test_path="b.jsonl")
    truth = {"grid_text": "E S #\n. . #\nG . #", "start": [0, 1], "end": [0, 0], "max_steps": 5}
    row = task.row_from_ground_truth("x", truth)
    mix = RouteMix(direct=0.0, diamond=0.0, detour_probabilities=(0.0,))
    routes = {mix(row, Random(seed)) for seed in range(300)}
    assert routes == {"DOWN LEFT DOWN UP UP", "DOWN DOWN LEFT UP UP"}


def test_a_route_is_the_same_for_the_same_generator():
    row = task_of().rows("train")[0]
    assert [RouteMix()(row, Random(5)) for _ in range(3)] == [RouteMix()(row, Random(5))] * 3


def test_routes_are_written_in_the_language_of_the_row():
    cells = task_of().rows("train")[0]
    moves = MazeTask(size=7).rows("train")[0]
    assert cells.ground_truth["grid_text"] == moves.ground_truth["grid_text"]
    assert set(RouteMix()(moves, Random(0)).split()) <= {"UP", "DOWN", "LEFT", "RIGHT"}
    assert all(word[0] == "r" and "c" in word for word in RouteMix()(cells, Random(0)).split())


def test_a_maze_without_a_lava_free_walk_or_items_is_walked_all_the_same():
    task = MazeTask(size=3, train_path="a.jsonl", test_path="b.jsonl")
    truth = {"grid_text": "S # .\nL # .\n. L E", "start": [0, 0], "end": [2, 2], "max_steps": 4}
    row = task.row_from_ground_truth("x", truth)
    for seed in range(20):
        assert GOLD(row, Random(seed)) == "DOWN DOWN RIGHT RIGHT"


@pytest.mark.parametrize(
    "settings",
    [
        {"direct": -1.0},
        {"direct": 0.0, "gold": 0.0, "diamond": 0.0},
        {"detour_probabilities": ()},
        {"detour_probabilities": (0.5, 1.5)},
        {"avoid_lava": -0.1},
    ],
)
def test_numbers_that_are_no_frequencies_are_refused(settings):
    with pytest.raises(ConfigError, match=r"warmup\.demonstrations"):
        RouteMix(**settings)


def test_settings_from_a_list_equal_those_from_a_tuple():
    # A warm-up is cached under the text of its settings.
    given = RouteMix(detour_probabilities=[0.0, 0.1, 0.25])
    assert repr(given) == repr(RouteMix())
    assert astuple(given) == astuple(RouteMix())


@pytest.mark.slow
def test_a_route_takes_a_fraction_of_a_millisecond():
    rows, rng, mix = task_of().rows("train")[:200], Random(0), RouteMix()
    began = time.process_time()
    for row in rows:
        for _ in range(6):
            mix(row, rng)
    assert (time.process_time() - began) / 1200 < 0.6e-3  # aim .3 ms; twice that on a busy machine
