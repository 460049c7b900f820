"""The report in a real Chromium: it opens, every chart has marks, and browsing works."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.report.written_runs import write_maze_run, write_search, write_text_run
from vpo_lightning.evaluation.report.contents import report_page
from vpo_lightning.evaluation.report.folders import find_runs
from vpo_lightning.evaluation.report.server import LivePage, make_server
from vpo_lightning.report import main
from vpo_lightning.report_pictures import TaskPictures

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]
READY = "html[data-ready=yes]"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MARKS = ".mark-line path, .mark-area path, .mark-symbol path, .mark-rect path"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    assert path is not None, "no Chromium here; Debian, Ubuntu: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A tab on which a console message, an error, a dialog or a request outside fails the test."""
    tab = chromium.new_page(viewport={"width": 1280, "height": 900})
    faults: list[str] = []
    tab.on("console", lambda message: faults.append(message.text))
    tab.on("pageerror", lambda error: faults.append(str(error)))
    tab.on("dialog", lambda dialog: faults.append(dialog.message))
    local = ("file:", "data:", "http://127.0.0.1:")
    tab.on("request", lambda r: None if r.url.startswith(local) else faults.append(r.url))
    yield tab
    tab.close()
    assert faults == []


@pytest.fixture(scope="module")
def written(sweep: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "report.html"
    assert main([str(sweep), "--out", str(out)]) == 0
    return out


def opened(page: Page, path: Path, link: str = "") -> Page:
    page.goto(f"{path.as_uri()}{link}")
    page.wait_for_selector(READY)
    return page


def report(folder: Path) -> Path:
    assert main([str(folder)]) == 0
    return folder / "report.html"


def charts_without_marks(page: Page) -> list[str]:
    plots = page.locator(".plot").all()
    assert plots
    return [
        plot.get_attribute("aria-label") or "no label"
        for plot in plots
        if not any(mark.get_attribute("d") for mark in plot.locator(MARKS).all())
    ]


def test_every_chart_has_marks_and_words(page: Page, written: Path) -> None:
    opened(page, written)
    assert charts_without_marks(page) == []
    assert page.locator(".plot:not([aria-label])").count() == 0
    assert page.locator("select:not(label select)").count() == 0
    assert page.locator("table th:not([scope])").count() == 0


def test_a_rollout_can_be_browsed_to(page: Page, written: Path) -> None:
    opened(page, written)
    page.get_by_label("Run", exact=True).select_option("vpo, seed 1")
    page.get_by_label("Training step").select_option("3")
    prompt = page.locator("#rollout-controls select").nth(2)
    prompt.select_option(index=1)
    page.locator(".group button").nth(2).click()
    assert page.locator(".group button[aria-current=true]").inner_text() == (
        page.locator(".figures-line dd").nth(1).inner_text()
    )
    assert page.locator("#rollouts mark").count() == 3
    assert page.locator("#rollouts .picture polyline").count() == 3
    assert page.locator("#rollouts .heat tbody tr").count() == 3
    link = page.evaluate("location.hash")
    text = page.locator(".completion").inner_text()
    opened(page, written, link)
    assert page.locator(".completion").inner_text() == text


def test_runs_can_be_switched_off_and_on(page: Page, written: Path) -> None:
    opened(page, written)
    lines = page.locator("#training .plot").first.locator(".mark-line path")
    assert lines.count() == 4
    page.get_by_role("button", name="grpo, seed 0").click()
    page.wait_for_selector(READY)
    assert lines.count() == 3
    assert page.locator("#compare .card").count() == 3
    page.get_by_role("button", name="grpo, seed 0").click()
    page.wait_for_selector(READY)
    assert lines.count() == 4


def test_another_prompt_can_be_compared_over_the_runs(page: Page, written: Path) -> None:
    opened(page, written)
    before = page.locator("#compare .picture title").first.text_content()
    page.locator("#compare").get_by_role("button", name="Next").click()
    page.wait_for_selector(READY)
    assert page.locator("#compare .picture title").first.text_content() != before
    assert page.evaluate("location.hash") == "#compare=test-2"
    assert charts_without_marks(page) == []


def test_charts_are_read_by_pointer_and_by_keyboard(page: Page, written: Path) -> None:
    opened(page, written)
    plot = page.locator("#training .plot").first
    plot.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert "step 2" in plot.locator(".tip").inner_text()
    page.keyboard.press("Escape")
    assert not plot.locator(".tip").is_visible()
    plot.hover(position={"x": 200, "y": 60})
    assert "vpo, seed 0" in plot.locator(".tip").inner_text()
    figure = page.locator("#training figure").first
    figure.locator("summary").click()
    assert figure.locator("tbody tr").count() == 6


def test_no_text_of_a_completion_runs(page: Page, tmp_path: Path) -> None:
    hostile = [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(2)>",
        "</script><script>alert(3)</script>",
        "<svg onload=alert(4)> <a href='javascript:alert(5)'>日本語</a>",
    ]
    write_text_run(tmp_path / "run", hostile, name="<img src=x onerror=alert(6)>")
    opened(page, report(tmp_path))
    for sample in range(2):
        page.locator(".group button").nth(sample).click()
    assert page.locator("#page img, #page iframe, #rollouts a, #rollouts script").count() == 0
    texts = "".join(
        opened(page, tmp_path / "report.html", f"#rollout={n + 1}").inner_text(".completion")
        for n in range(4)
    )
    assert all(text in texts for text in hostile)


@pytest.mark.parametrize("kind", ["no evaluation", "crashed", "two tasks", "one answer", "search"])
def test_unusual_runs_open(kind: str, page: Page, tmp_path: Path) -> None:
    if kind == "no evaluation":
        write_maze_run(tmp_path / "run", steps=2, evaluates=False)
    elif kind == "crashed":
        folder = write_maze_run(tmp_path / "run", steps=3, evaluates=False)
        (folder / "summary.json").unlink()
        (folder / "rollouts" / "step_000002_rank_0.parquet").write_bytes(b"")
    elif kind == "two tasks":
        write_maze_run(tmp_path / "0_maze", steps=2)
        write_text_run(tmp_path / "1_toy", ["[1, 0]", "[0, 1]"])
    elif kind == "one answer":
        write_text_run(tmp_path / "run", ["[1, 1]"])
    else:
        write_search(write_maze_run(tmp_path / "run", steps=2), "best_of_n", ["test-1"])
    opened(page, report(tmp_path))
    assert charts_without_marks(page) == []


def test_it_fits_a_phone_follows_the_dark_and_prints(chromium: Browser, written: Path) -> None:
    phone = chromium.new_page(viewport={"width": 390, "height": 844}, color_scheme="light")
    opened(phone, written)
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390
    colour = "getComputedStyle(document.body).backgroundColor"
    light = phone.evaluate(colour)
    phone.emulate_media(color_scheme="dark")
    assert phone.evaluate(colour) != light
    phone.emulate_media(media="print")
    assert phone.evaluate(colour) == "rgb(255, 255, 255)"
    assert not phone.locator("#runs-bar").is_visible()
    assert phone.locator(".legend").first.is_visible()
    phone.close()


def test_a_live_page_follows_its_run(page: Page, tmp_path: Path) -> None:
    folder = write_maze_run(tmp_path / "run", steps=3, evaluates=False)
    (folder / "summary.json").unlink()
    records = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(records[:2]))

    def build() -> str:
        return report_page(find_runs([tmp_path]), TaskPictures(), rollouts=8, live=True)

    server = make_server(LivePage([tmp_path], build), 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        page.wait_for_selector(READY)
        assert "2 steps" in page.inner_text(".facts")
        (folder / "metrics.jsonl").write_text("".join(records))
        page.get_by_text("3 steps").wait_for(timeout=60_000)
        page.wait_for_selector(READY)
        assert charts_without_marks(page) == []
    finally:
        server.shutdown()
        server.server_close()
