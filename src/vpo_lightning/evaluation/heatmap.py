"""A square matrix of figures as a self-contained SVG picture."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

_CELL, _LABEL = 34, 170


def heatmap_svg(names: Sequence[str], matrix: Sequence[Sequence[float]], least: float) -> str:
    """The picture, from white at `least` to dark blue at 1; NaN is an empty, hatched cell.

    Args:
        names: Of rows and columns.
        matrix: One row for each name.
        least: Value drawn in white.
    """
    size = _CELL * len(names)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LABEL + size + 8}" '
        f'height="{_LABEL + size + 8}" font-family="sans-serif" font-size="11" role="img">'
    ]
    for i, name in enumerate(names):
        middle = _LABEL + _CELL * i + _CELL / 2
        text = html.escape(name)
        parts.append(f'<text x="{_LABEL - 6}" y="{middle + 4}" text-anchor="end">{text}</text>')
        parts.append(
            f'<text transform="translate({middle + 4} {_LABEL - 6}) rotate(-90)">{text}</text>'
        )
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            parts.append(_cell(_LABEL + _CELL * j, _LABEL + _CELL * i, value, least))
    return "\n".join([*parts, "</svg>"])


def _cell(x: int, y: int, value: float, least: float) -> str:
    box = f'x="{x}" y="{y}" width="{_CELL}" height="{_CELL}" stroke="#fff"'
    if math.isnan(value):
        return f'<rect {box} fill="#eee"/><path d="M{x} {y}l{_CELL} {_CELL}" stroke="#bbb"/>'
    depth = min(max((value - least) / (1 - least), 0.0), 1.0)
    red, green, blue = (round(255 - depth * (255 - end)) for end in (8, 69, 148))
    ink = "#fff" if depth > 0.55 else "#222"
    number = f"{value:.2f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.0f}"
    return (
        f'<rect {box} fill="rgb({red},{green},{blue})"/><text x="{x + _CELL / 2}" '
        f'y="{y + _CELL / 2 + 4}" text-anchor="middle" fill="{ink}">{number}</text>'
    )
