"""Which paragraphs the answers of a chain cite, and which they should, as a table."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vpo_lightning.picture import Element, draw
from vpo_lightning.task import PromptRow
from vpo_lightning.tasks.musique.rewards import parse_cited_answer

_PARAGRAPH = re.compile(r"^\[(\d+)\] (.*)$", re.MULTILINE)
_SHOWN = 160  # characters of a paragraph
_MOST_ROWS = 24


def citation_table(row: PromptRow, answers: Sequence[str]) -> Element:
    """One row for each paragraph that is cited or needed, one column for each answer.

    Args:
        row: A row of `MusiqueTask`.
        answers: The answers by slot, tags and all.
    """
    given = [parse_cited_answer(answer) for answer in answers]
    hops = {index: hop for hop, index in enumerate(_supporting(row), start=1)}
    cited = [index for answer in given for index in answer.cited]
    paragraphs = {int(index): text for index, text in _PARAGRAPH.findall(row.prompt)}
    head = ["paragraph", "needed", *(f"answer {slot + 1}" for slot in range(len(given)))]
    said = [draw("td", answer.text or "(no answer)") for answer in given]
    rows = [
        draw(
            "tr",
            draw("th", f"[{index}] ", _shortened(paragraphs.get(index, "not there")), scope="row"),
            draw("td", f"hop {hops[index]}" if index in hops else "no"),
            *(_cell(index in answer.cited, index in hops) for answer in given),
        )
        for index in list(dict.fromkeys([*hops, *cited]))[:_MOST_ROWS]
    ]
    wanted = draw("th", f"answer: {row.ground_truth.get('answer', '')}", scope="row")
    return draw(
        "table",
        draw("caption", f"Paragraphs cited by {len(given)} answers"),
        draw("thead", draw("tr", *(draw("th", title, scope="col") for title in head))),
        draw("tbody", *rows, draw("tr", wanted, draw("td"), *said, class_="total")),
    )


def _supporting(row: PromptRow) -> Sequence[int]:
    return row.ground_truth.get("supporting_indices_ordered", [])


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _cell(is_cited: bool, is_needed: bool) -> Element:
    if not is_cited:
        return draw("td", "–")
    return draw("td", "✓ cited" if is_needed else "✗ cited", class_="good" if is_needed else "bad")
