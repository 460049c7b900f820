"""Which part of a completion is a route."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpo_lightning.parsing import StopRule
from vpo_lightning.tasks.maze.formats import RouteTags

FORMAT = RouteTags()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<answer>UP</answer>", "UP"),
        ("First LEFT. <answer> UP\n</answer> then DOWN", "UP"),
        ("<Answer>UP</ANSWER>", "UP"),
        ("<answer>UP</answer><answer>DOWN</answer>", "UP"),
        ("<answer></answer> DOWN", ""),
        ("<answer>UP", "<answer>UP"),
        ("UP DOWN", "UP DOWN"),
        ("", ""),
    ],
)
def test_a_single_route_is_the_first_answer_tag_or_the_whole_text(text, expected):
    assert FORMAT.parse_single(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<route_1>UP</route_1><route_2>DOWN</route_2>", ["UP", "DOWN", None]),
        ("<route_3>UP</route_3>", [None, None, "UP"]),
        ("<route_4>UP</route_4>", ["<route_4>UP</route_4>", None, None]),
        ("<ROUTE_1>UP</ROUTE_1>", ["<ROUTE_1>UP</ROUTE_1>", None, None]),
        ("<route_1>so: <answer>UP</answer></route_1>", ["UP", None, None]),
        ("<route_1></route_1> --- UP", ["", None, None]),
        ("UP\n---\nDOWN\n---\nLEFT\n---\nRIGHT", ["UP", "DOWN", "LEFT"]),
        ("---\nUP\n---\n", ["---\nUP\n---", None, None]),
        ("<answer>UP</answer> --- <answer>DOWN</answer>", ["UP", "DOWN", None]),
        ("<answer>UP</answer> and <ANSWER>DOWN</ANSWER>", ["UP", "DOWN", None]),
        ("just UP", ["just UP", None, None]),
        ("", ["", None, None]),
    ],
)
def test_several_routes_are_numbered_or_separated_or_one(text, expected):
    assert FORMAT.parse_multiple(text, 3) == expected


@given(st.text(), st.integers(1, 5))
def test_any_text_gives_exactly_m_slots(text, m):
    assert len(FORMAT.parse_multiple(text, m)) == m


@given(st.lists(st.sampled_from(["UP", "DOWN LEFT", "RIGHT"]), min_size=1, max_size=5))
def test_what_is_rendered_is_parsed_again(routes):
    assert FORMAT.parse_multiple(FORMAT.render_multiple(routes), len(routes)) == routes
    assert FORMAT.parse_single(FORMAT.render_single(routes[0])) == routes[0]


def test_a_completion_ends_at_its_last_tag():
    assert FORMAT.stop_single() == StopRule("</answer>")
    assert FORMAT.stop_multiple(3) == StopRule("</route_3>")
    assert FORMAT.render_multiple(["UP"] * 3).endswith("</route_3>")


def test_prompts_show_the_form_of_every_slot():
    assert "<answer>" in FORMAT.ask_single()
    asked = FORMAT.ask_multiple(4)
    assert all(f"<route_{i}>" in asked and f"</route_{i}>" in asked for i in (1, 2, 3, 4))
    assert "<route_5>" not in asked
