"""A maze and the routes of some answers as one small picture."""

from __future__ import annotations

from collections.abc import Sequence

from vpo_lightning.picture import Element, draw
from vpo_lightning.task import PromptRow
from vpo_lightning.tasks.maze.grid import BONUS, DIAMOND, END, GOLD, LAVA, START, WALL, Maze
from vpo_lightning.tasks.maze.routes import parse_cells, parse_moves, walk_cells, walk_moves
from vpo_lightning.tasks.maze.rows import maze_of

_CELL = 32  # pixels
_MARGIN = 4
_NUM_STYLES = 4  # of routes; a fifth looks like the first

# Class names carry a prefix because a style inside an SVG applies to the whole page it stands in.
_STYLE = """\
.vpo-maze{--surface:#fbfaf7;--line:#d9d5cc;--faint:#55524c;--ink:#22211f;--yellow:#b8860b;\
--blue:#1769aa;--red:#c0392b;--slot-1:#6a1b9a;--slot-2:#00695c;--slot-3:#ad1457;--slot-4:#37474f}
@media(prefers-color-scheme:dark){.vpo-maze{--surface:#1d1f22;--line:#383b40;--faint:#8b8f96;\
--ink:#f0efec;--yellow:#f2c14e;--blue:#6cb8ff;--red:#ff7b6b;--slot-1:#cf9bf5;--slot-2:#5fd3c0;\
--slot-3:#ff8fb8;--slot-4:#b8c4cc}}
.vpo-maze text{font-family:sans-serif}"""
_DASHES = ("none", "8 5", "2 5", "10 4 2 4")


def picture(row: PromptRow, answers: Sequence[str]) -> str:
    """The `drawing` as an SVG that stands alone, with colours for light and dark."""
    markup = drawing(row, answers).to_markup()
    opened = markup.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return opened.replace("</desc>", f"</desc><style>{_STYLE}</style>", 1)


def drawing(row: PromptRow, answers: Sequence[str]) -> Element:
    """The row's grid with the walk of each answer.

    Start is a ringed S, end a framed E, gold discs, diamonds lozenges, lava waves, walls filled
    cells, the bonus tile a thin cross. Routes differ in colour, dashes and offset; a route ends in
    a dot where its walk stops. Title and description say the same in words.

    Args:
        row: A row of `MazeTask`.
        answers: Texts of answers in the row's language.
    """
    maze = maze_of(row)
    walks = [_walk(maze, answer, row.ground_truth["answers"]) for answer in answers]
    side = maze.size * _CELL + 2 * _MARGIN
    routes = [shape for number, walk in enumerate(walks) for shape in _route(maze, walk, number)]
    return draw(
        "svg",
        draw("title", f"Maze {row.id} with {len(walks)} routes"),
        draw("desc", _description(maze, walks)),
        *_grid(maze),
        *routes,
        class_="vpo-maze",
        role="img",
        width=side,
        height=side,
        viewBox=f"{-_MARGIN} {-_MARGIN} {side} {side}",
    )


def _walk(maze: Maze, answer: str, language: str) -> list[int]:
    if language == "cells":
        return walk_cells(maze, parse_cells(answer, maze.size))
    return walk_moves(maze, parse_moves(answer))


def _description(maze: Maze, walks: Sequence[Sequence[int]]) -> str:
    """The grid and, for each route, how it went."""
    sentences = [
        f"{maze.size} by {maze.size} grid, budget {maze.budget} moves, {len(maze.gold)} gold, "
        f"{len(maze.diamonds)} diamonds, {len(maze.lava)} lava."
    ]
    for number, walk in enumerate(walks, start=1):
        ending = "reaches the end" if walk[-1] == maze.end else "does not reach the end"
        sentences.append(
            f"Route {number} {ending} in {len(walk) - 1} moves with "
            f"{len(maze.gold.intersection(walk))} gold, "
            f"{len(maze.diamonds.intersection(walk))} diamonds, "
            f"{len(maze.lava.intersection(walk))} lava."
        )
    return " ".join(sentences)


def _grid(maze: Maze) -> list[Element]:
    side = maze.size * _CELL
    lines = "".join(f"M{at} 0v{side}M0 {at}h{side}" for at in range(0, side + 1, _CELL))
    cells = [
        draw(
            "g", *shapes, transform=f"translate({at % maze.size * _CELL} {at // maze.size * _CELL})"
        )
        for at, symbol in enumerate(maze.cells)
        if (shapes := _symbol(symbol))
    ]
    return [
        draw("rect", width=side, height=side, fill="var(--surface)"),
        draw("path", d=lines, stroke="var(--line)"),
        *cells,
    ]


def _symbol(symbol: str) -> list[Element]:
    """The shapes of a cell; every symbol can be read without its colours."""
    if symbol == WALL:
        return [draw("rect", width=32, height=32, fill="var(--faint)")]
    if symbol == GOLD:
        return [draw("circle", cx=16, cy=16, r=8, fill="var(--yellow)")]
    if symbol == DIAMOND:
        return [draw("path", d="M16 6 26 16 16 26 6 16Z", fill="var(--blue)")]
    if symbol == LAVA:
        waves = "M5 12q5.5 -6 11 0t11 0M5 20q5.5 -6 11 0t11 0"
        return [draw("path", d=waves, fill="none", stroke="var(--red)", stroke_width=4)]
    if symbol == BONUS:
        return [
            draw("path", d="M16 8v16M8 16h16", stroke="var(--ink)", stroke_width=2, opacity=0.5)
        ]
    frame = {"fill": "none", "stroke": "var(--ink)", "stroke_width": 2}
    if symbol == START:
        return [draw("circle", cx=16, cy=16, r=12, **frame), _letter("S")]
    if symbol == END:
        return [draw("rect", x=5, y=5, width=22, height=22, **frame), _letter("E")]
    return []


def _letter(letter: str) -> Element:
    look = {"fill": "var(--ink)", "font_size": 15, "font_weight": "bold"}
    return draw("text", letter, x=16, y=21, text_anchor="middle", **look)


def _route(maze: Maze, walk: Sequence[int], number: int) -> list[Element]:
    """The line of one walk, beside those of the other routes, and a dot where it stops."""
    style = number % _NUM_STYLES
    shift = (style - 1.5) * 4
    points = [
        (cell % maze.size * _CELL + 16 + shift, cell // maze.size * _CELL + 16 + shift)
        for cell in walk
    ]
    line = draw(
        "polyline",
        points=" ".join(f"{x:g},{y:g}" for x, y in points),
        fill="none",
        stroke=f"var(--slot-{style + 1})",
        stroke_width=3,
        stroke_dasharray=_DASHES[style],
        stroke_linejoin="round",
        stroke_linecap="round",
    )
    x, y = points[-1]
    return [line, draw("circle", cx=x, cy=y, r=4, fill=f"var(--slot-{style + 1})")]
