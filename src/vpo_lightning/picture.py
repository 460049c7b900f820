"""Pictures of answers for a report: a tree of elements that can hold no script.

A task's own picture (`Task.picture`) is built from `draw`, never from markup, so that whatever a
completion says stays text. The page builds the same tree again, element by element.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Any

# ruff: noqa: SIM905  (as lists these would be one word a line)
SVG_TAGS = frozenset("svg g title desc rect circle ellipse line polyline polygon path text".split())
HTML_TAGS = frozenset(
    "div p span strong em mark small code pre ol ul li table caption thead tbody tr th td".split()
)
ATTRIBUTES = frozenset(
    "class role aria-label aria-hidden scope colspan rowspan viewBox width height x y x1 x2 y1 y2 "
    "cx cy r rx ry d points transform fill stroke stroke-width stroke-dasharray stroke-linejoin "
    "stroke-linecap opacity text-anchor font-size font-weight".split()
)
"""No attribute here can hold a script, a link or a style sheet."""


@dataclass(frozen=True)
class Element:
    """One element of a picture: SVG shapes, or the text and table elements of HTML.

    Colours are written as the page's variables, which follow its light or dark setting: ``--ink``,
    ``--faint``, ``--line``, ``--surface``, ``--good``, ``--bad``, ``--slot-1`` to ``--slot-8`` (the
    answers of a chain), as in ``fill="var(--ink)"``.

    Attributes:
        tag: One of `SVG_TAGS` or `HTML_TAGS`.
        attributes: Values by name, names out of `ATTRIBUTES`.
        children: Elements and texts; texts are shown as they are, whatever they hold.

    Raises:
        ValueError: A tag or attribute that is not allowed.
    """

    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: tuple[Element | str, ...] = ()

    def __post_init__(self) -> None:
        """Refuses what could hold a script, a link or a style sheet."""
        if self.tag not in SVG_TAGS | HTML_TAGS:
            allowed = ", ".join(sorted(SVG_TAGS | HTML_TAGS))
            raise ValueError(f"element {self.tag!r} in a picture; expected one of {allowed}")
        if unknown := sorted(set(self.attributes) - ATTRIBUTES):
            allowed = ", ".join(sorted(ATTRIBUTES))
            raise ValueError(f"attributes {unknown} of {self.tag!r}; expected some of {allowed}")

    def to_json(self) -> list[Any]:
        """``[tag, attributes, children]`` of nested lists, as the page reads it."""
        inner = [child if isinstance(child, str) else child.to_json() for child in self.children]
        return [self.tag, self.attributes, inner]

    def to_markup(self) -> str:
        """The element as markup, with all texts escaped."""
        attributes = "".join(f' {k}="{escape(v)}"' for k, v in self.attributes.items())
        inner = "".join(
            escape(child, quote=False) if isinstance(child, str) else child.to_markup()
            for child in self.children
        )
        return f"<{self.tag}{attributes}>{inner}</{self.tag}>"


def draw(tag: str, *children: Element | str, **attributes: str | float) -> Element:
    """An element; underscores in attribute names stand for hyphens, and ``class_`` for ``class``.

    Raises:
        ValueError: A tag or attribute that is not allowed.
    """
    named = {
        name.rstrip("_").replace("_", "-"): value if isinstance(value, str) else f"{value:g}"
        for name, value in attributes.items()
    }
    return Element(tag, named, children)
