"""The SVG of a maze: complete, accessible, safe to put into a page."""

import xml.etree.ElementTree as ElementTree
from random import Random

import pytest

from vpo_lightning.task import PromptRow
from vpo_lightning.tasks.maze.demonstrations import RouteMix
from vpo_lightning.tasks.maze.picture import picture
from vpo_lightning.tasks.maze.task import MazeTask

SVG = "{http://www.w3.org/2000/svg}"
TASK = MazeTask(size=7, style="compact", answers="cells")


def drawn(row: PromptRow, answers: list[str]) -> ElementTree.Element:
    return ElementTree.fromstring(picture(row, answers))


def test_title_and_description_say_what_is_drawn():
    row, rng = TASK.rows("test")[0], Random(0)
    answers = [RouteMix(direct=0.0, diamond=0.0)(row, rng), "r0c0 r6c6"]
    root = drawn(row, answers)
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == "Maze test-1 with 2 routes"
    description = root.findtext(f"{SVG}desc") or ""
    assert f"budget {row.ground_truth['max_steps']} moves" in description
    assert f"Route 1 reaches the end in {len(answers[0].split())} moves" in description
    assert "Route 2 does not reach the end in 0 moves" in description


def test_every_symbol_is_drawn_in_a_shape_of_its_own():
    row = TASK.rows("test")[0]
    symbols = "".join(row.ground_truth["grid_text"].split())
    root = drawn(row, [])
    groups = root.findall(f"{SVG}g")
    assert len(groups) == sum(symbol != "." for symbol in symbols)
    shapes: dict[str, set[str]] = {}
    for group in groups:
        x, y = (group.get("transform") or "").removeprefix("translate(").rstrip(")").split()
        symbol = symbols[int(y) // 32 * 7 + int(x) // 32]
        form = [(c.tag, c.get("d"), c.get("r"), c.get("width"), c.text) for c in group]
        shapes.setdefault(symbol, set()).add(str(form))
    assert all(len(forms) == 1 for forms in shapes.values())
    assert len({form for forms in shapes.values() for form in forms}) == len(shapes)


def test_routes_differ_without_colour():
    row, rng = TASK.rows("test")[1], Random(0)
    lines = drawn(row, [RouteMix()(row, rng) for _ in range(4)]).findall(f"{SVG}polyline")
    assert len({line.get("stroke-dasharray") for line in lines}) == 4
    assert len({(line.get("points") or "").split()[0] for line in lines}) == 4  # all at the start


def test_moves_are_drawn_like_the_cells_they_enter():
    cells, moves = TASK.rows("test")[2], MazeTask(size=7).rows("test")[2]
    by_cells = drawn(cells, [RouteMix()(cells, Random(3))]).find(f"{SVG}polyline")
    by_moves = drawn(moves, [RouteMix()(moves, Random(3))]).find(f"{SVG}polyline")
    assert by_cells is not None
    assert by_moves is not None
    assert by_cells.get("points") == by_moves.get("points")


def test_colours_follow_the_readers_setting_and_stay_inside_the_picture():
    style = drawn(TASK.rows("test")[0], []).findtext(f"{SVG}style") or ""
    assert "prefers-color-scheme:dark" in style
    rules = style.replace("@media(prefers-color-scheme:dark){", "").split("}")
    assert all(rule.strip().startswith(".vpo-maze") for rule in rules if rule.strip())


@pytest.mark.parametrize("text", ["", "<script>alert(1)</script>", "r0c0 & <b>"])
def test_the_text_of_an_answer_never_reaches_the_page(text):
    row = TASK.rows("test")[0]
    assert "script" not in picture(row, [text])
    assert len(drawn(row, [text]).findall(f"{SVG}polyline")) == 1
    named = PromptRow("<a>&", row.prompt, row.ground_truth, row.objectives)
    assert drawn(named, []).findtext(f"{SVG}title") == "Maze <a>& with 0 routes"


def test_a_picture_is_small():
    row, rng = TASK.rows("test")[0], Random(0)
    assert len(picture(row, [RouteMix()(row, rng) for _ in range(3)])) < 6000
