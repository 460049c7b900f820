import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpo_lightning.parsing import (
    AnswerFormat,
    NumberedTags,
    SeparatedAnswers,
    StopRule,
    first_body,
    numbered_tags,
    tag_bodies,
)

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden" / "text_and_parsing.json").read_text(encoding="utf-8")
)
FORMATS: list[AnswerFormat] = [NumberedTags("response", "your answer"), SeparatedAnswers()]
# Answers that hold no delimiter of either format; the ends are stripped by parsing.
PLAIN = st.text("abc XYZ019\n.,", max_size=20).map(str.strip)


@pytest.mark.parametrize("case", GOLDEN["extract_numbered_tags"], ids=lambda c: repr(c["text"]))
def test_golden_tags_are_found(case):
    found = numbered_tags(case["text"], case["m"], case["tag"])
    # Departure from the reference: a missing slot is None, so that it differs from an empty one.
    assert [body or "" for body in found] == case["expected"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<a_2>two</a_2><a_1>one</a_1>", ["one", "two"]),  # in any order
        ("<a_1>one</a_1><a_1>other</a_1>", ["one", None]),  # the first counts
        ("<a_1>one<a_2>two</a_2>", [None, "two"]),  # an unclosed one is missing
        ("<a_1></a_1>", ["", None]),
        ("<a_1>\n one\nmore \n</a_1>", ["one\nmore", None]),
        ("<A_1>one</A_1>", [None, None]),
        ("<a_11>eleven</a_11>", [None, None]),
        (None, [None, None]),
    ],
)
def test_numbered_tags_by_hand(text, expected):
    assert numbered_tags(text, 2, "a") == expected


@given(st.text(), st.integers(1, 6), st.sampled_from(FORMATS))
def test_any_text_gives_exactly_m_slots(text, m, answer_format):
    assert len(answer_format.parse_multiple(text, m)) == m
    assert isinstance(answer_format.parse_single(text), str)


@given(st.lists(PLAIN, min_size=1, max_size=5), st.sampled_from(FORMATS))
def test_what_is_rendered_is_parsed_again(answers, answer_format):
    text = answer_format.render_multiple(answers)
    assert answer_format.parse_multiple(text, len(answers)) == answers
    assert answer_format.parse_single(answer_format.render_single(answers[0])) == answers[0]


@given(st.lists(PLAIN, min_size=1, max_size=5), st.sampled_from(FORMATS))
def test_text_after_the_stop_does_not_change_the_answers(answers, answer_format):
    m = len(answers)
    stop = answer_format.stop_multiple(m)
    text = answer_format.render_multiple(answers)
    if text.count(stop.text) < stop.count:  # a chain may also end with the end-of-sequence token
        text += f" {stop.text}"
    assert text.count(stop.text) == stop.count
    assert answer_format.parse_multiple(f"{text} more {stop.text} text", m) == answers


def test_separated_answers_by_hand():
    answer_format = SeparatedAnswers()
    assert answer_format.parse_multiple("a b | c | d | e", 3) == ["a b", "c", "d"]
    assert answer_format.parse_multiple("a |", 3) == ["a", "", None]
    assert answer_format.parse_multiple("", 2) == ["", None]
    assert answer_format.parse_single("a b | c") == "a b"
    assert answer_format.stop_single() == StopRule("|")
    assert answer_format.stop_multiple(3) == StopRule("|", 3)


def test_a_chain_of_tags_stops_at_its_last_closing_tag():
    assert NumberedTags("response", "x").stop_multiple(3) == StopRule("</response_3>")
    assert NumberedTags("response", "x").stop_single() is None


def test_prompts_show_every_slot_and_the_form_inside():
    asked = NumberedTags("response", "your answer").ask_multiple(3)
    for i in (1, 2, 3):
        assert f"<response_{i}>your answer</response_{i}>" in asked
    assert "Give 3 different answers" in asked
    assert "<response" not in NumberedTags("response", "your answer").ask_single()


def test_importance_is_stated_in_words_or_in_tenths():
    weights = [0.5, 0.333, 0.167]
    words = NumberedTags("response", "x").ask_goal(["a", "b", "c"], weights)
    assert words.endswith("a 50%, b 33%, c 17%.")
    assert SeparatedAnswers().ask_goal(["a", "b", "c"], weights) == "<goal> 5 3 2"
    with pytest.raises(ValueError, match="shorter"):
        NumberedTags("response", "x").ask_goal(["a", "b", "c"], [0.5, 0.5])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_a_compact_prompt_uses_only_the_words_that_are_declared(weights):
    answer_format = SeparatedAnswers()
    words = answer_format.words()
    assert len(words) == len(set(words)) == 15
    said = answer_format.ask_goal(["x"] * len(weights), weights).split()
    said += [answer_format.ask_single(), answer_format.ask_multiple(3)]
    said += answer_format.render_multiple(["", ""]).split()
    assert set(said) <= set(words)


@given(st.lists(st.sampled_from(["<t>", "</t>", "<T>", "</T>", "x", "\n", "<t"])).map("".join))
def test_bodies_are_those_that_a_regular_expression_finds(text):
    for ignore_case in (False, True):
        flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)
        expected = re.findall("<t>(.*?)</t>", text, flags)
        assert list(tag_bodies(text, "t", ignore_case=ignore_case)) == expected
        assert first_body(text, "t", ignore_case=ignore_case) == (expected or [None])[0]


def test_tags_that_are_never_closed_take_linear_time():
    start = time.perf_counter()
    for tag in ("response_1", "response_2"):
        assert numbered_tags(f"<{tag}>" * 100_000, 2, "response") == [None, None]
    assert time.perf_counter() - start < 2  # a quadratic search takes minutes
