"""A maze and the routes of some answers as one small SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from vpo_lightning.task import PromptRow
from vpo_lightning.tasks.maze.grid import BONUS, DIAMOND, END, GOLD, LAVA, START, WALL, Maze
from vpo_lightning.tasks.maze.routes import parse_cells, parse_moves, walk_cells, walk_moves
from vpo_lightning.tasks.maze.rows import maze_of

_CELL = 32  # pixels
_MARGIN = 4

# Class names carry a prefix because a style inside an SVG applies to the whole page it stands in.
_STYLE = """\
.vpo-maze{--floor:#fbfaf7;--line:#d9d5cc;--wall:#55524c;--ink:#22211f;--gold:#b8860b;\
--diamond:#1769aa;--lava:#c0392b;--r0:#6a1b9a;--r1:#00695c;--r2:#ad1457;--r3:#37474f}
@media(prefers-color-scheme:dark){.vpo-maze{--floor:#1d1f22;--line:#383b40;--wall:#8b8f96;\
--ink:#f0efec;--gold:#f2c14e;--diamond:#6cb8ff;--lava:#ff7b6b;--r0:#cf9bf5;--r1:#5fd3c0;\
--r2:#ff8fb8;--r3:#b8c4cc}}
.vpo-maze text{font:bold 15px sans-serif;fill:var(--ink);text-anchor:middle}
.vpo-maze .route{fill:none;stroke-width:3;stroke-linejoin:round;stroke-linecap:round}"""

# Every symbol has a shape of its own, so that a picture can be read without its colours.
_SHAPES = {
    WALL: '<rect width="32" height="32" fill="var(--wall)"/>',
    GOLD: '<circle cx="16" cy="16" r="8" fill="var(--gold)"/>',
    DIAMOND: '<path d="M16 6 26 16 16 26 6 16Z" fill="var(--diamond)"/>',
    LAVA: (
        '<path d="M5 12q5.5 -6 11 0t11 0M5 20q5.5 -6 11 0t11 0" fill="none" '
        'stroke="var(--lava)" stroke-width="4"/>'
    ),
    BONUS: '<path d="M16 8v16M8 16h16" stroke="var(--ink)" stroke-width="2" opacity=".5"/>',
    START: '<circle cx="16" cy="16" r="12" fill="none" stroke="var(--ink)" stroke-width="2"/>'
    '<text x="16" y="21">S</text>',
    END: '<rect x="5" y="5" width="22" height="22" fill="none" stroke="var(--ink)" '
    'stroke-width="2"/><text x="16" y="21">E</text>',
}
_DASHES = ("none", "8 5", "2 5", "10 4 2 4")


def picture(row: PromptRow, answers: Sequence[str]) -> str:
    """An SVG of the row's grid with the walk of each answer.

    Start is a ringed S, end a framed E, gold discs, diamonds lozenges, lava waves, walls filled
    cells, the bonus tile a thin cross. Routes differ in colour, dashes and offset; a route ends in
    a dot where its walk stops. Title and description say the same in words; colours follow the
    reader's light or dark setting.

    Args:
        row: A row of `MazeTask`.
        answers: Texts of answers in the row's language.
    """
    maze = maze_of(row)
    walks = [_walk(maze, answer, row.ground_truth["answers"]) for answer in answers]
    side = maze.size * _CELL + 2 * _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="vpo-maze" role="img" width="{side}" '
        f'height="{side}" viewBox="{-_MARGIN} {-_MARGIN} {side} {side}">',
        f"<title>Maze {escape(row.id)} with {len(walks)} routes</title>",
        f"<desc>{_description(maze, walks)}</desc>",
        f"<style>{_STYLE}</style>",
        *_grid(maze),
        *(_route(maze, walk, number) for number, walk in enumerate(walks)),
        "</svg>",
    ]
    return "\n".join(parts)


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


def _grid(maze: Maze) -> list[str]:
    side = maze.size * _CELL
    lines = "".join(f"M{at} 0v{side}M0 {at}h{side}" for at in range(0, side + 1, _CELL))
    shapes = [
        f'<g transform="translate({cell % maze.size * _CELL} {cell // maze.size * _CELL})">'
        f"{_SHAPES[symbol]}</g>"
        for cell, symbol in enumerate(maze.cells)
        if symbol in _SHAPES
    ]
    return [
        f'<rect width="{side}" height="{side}" fill="var(--floor)"/>',
        f'<path d="{lines}" stroke="var(--line)"/>',
        *shapes,
    ]


def _route(maze: Maze, walk: Sequence[int], number: int) -> str:
    """The line of one walk, beside those of the other routes, and a dot where it stops."""
    shift = (number % 4 - 1.5) * 4
    points = [
        (cell % maze.size * _CELL + 16 + shift, cell // maze.size * _CELL + 16 + shift)
        for cell in walk
    ]
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    colour, dash = f"var(--r{number % 4})", _DASHES[number % 4]
    stop = points[-1]
    return (
        f'<polyline class="route" points="{path}" stroke="{colour}" stroke-dasharray="{dash}"/>'
        f'<circle cx="{stop[0]:g}" cy="{stop[1]:g}" r="4" fill="{colour}"/>'
    )
