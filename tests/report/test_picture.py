"""Pictures of answers hold no script, whoever draws them."""

from __future__ import annotations

from typing import Any

import pytest

from vpo_lightning.picture import ATTRIBUTES, HTML_TAGS, SVG_TAGS, Element, draw


@pytest.mark.parametrize("tag", ["script", "style", "a", "img", "iframe", "foreignObject", "use"])
def test_elements_that_could_run_or_load_something_are_refused(tag: str) -> None:
    with pytest.raises(ValueError, match=f"element '{tag}' in a picture"):
        draw(tag)


@pytest.mark.parametrize("name", ["onclick", "href", "style", "xlink:href", "src", "id"])
def test_attributes_that_could_run_or_load_something_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Element("p", {name: "x"})


def test_texts_stay_texts() -> None:
    drawn = draw("p", "<b>&</b>", class_='a"b<')
    assert drawn.to_markup() == '<p class="a&quot;b&lt;">&lt;b&gt;&amp;&lt;/b&gt;</p>'
    assert drawn.to_json() == ["p", {"class": 'a"b<'}, ["<b>&</b>"]]


def test_numbers_and_names_become_attributes() -> None:
    assert draw("rect", width=2.50, stroke_width=3, class_="c").attributes == {
        "width": "2.5",
        "stroke-width": "3",
        "class": "c",
    }


def test_the_page_allows_what_python_allows() -> None:
    from importlib import resources

    package = resources.files("vpo_lightning.evaluation.report")
    script = package.joinpath("page", "scripts", "pictures.js").read_text()
    words: set[Any] = set(script.replace('"', " ").split())
    assert words >= SVG_TAGS | HTML_TAGS | ATTRIBUTES
