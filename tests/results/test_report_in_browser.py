"""The report in a browser: it opens offline, draws, and answers to the pointer.

Needs Chromium (`apt-get install chromium`). Where there is none, the CI fails; elsewhere these
tests are left out.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from memtrade.measure.records import load_records
from memtrade.papers.thesis import thesis_report

MEASURED = Path(__file__).resolve().parents[2] / "results" / "measured"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")


@dataclass
class Opened:
    """A page and what it complained about or asked for."""

    page: Page
    problems: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None and not os.environ.get("CI"):
        pytest.skip("needs chromium: apt-get install chromium")
    assert found is not None, "no chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    records = load_records(MEASURED)
    page = thesis_report(records, folder="results/measured", command="memtrade report")
    path.write_text(page, encoding="utf-8")
    return path


def open_page(browser: Browser, path: Path, *, width: int = 1280, scheme: str = "light") -> Opened:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # pyright: ignore[reportArgumentType]
    opened = Opened(page)
    page.on("console", lambda message: opened.problems.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: opened.problems.append(f"error: {error}"))

    def requested(url: str) -> None:
        if url != path.as_uri() and not url.startswith(("data:", "blob:")):
            opened.problems.append(f"request: {url}")

    page.on("request", lambda request: requested(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector("#plot-trade .main-svg")
    return opened


@pytest.fixture(scope="module")
def opened(browser: Browser, report_path: Path) -> Iterator[Opened]:
    """Opened once, for that takes most of the time."""
    opened = open_page(browser, report_path)
    yield opened
    opened.page.close()


@pytest.fixture
def report(opened: Opened) -> Iterator[Opened]:
    """The page at which tests look one after the other, each at a part that is its own."""
    opened.page.mouse.move(0, 0)
    yield opened
    assert opened.problems == []


def centre(page: Page, selector: str) -> tuple[float, float]:
    page.locator(selector).first.scroll_into_view_if_needed()
    box = page.locator(selector).first.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


FIRST_POINT = "#plot-peak .panel:nth-child(2) .scatterlayer .trace:first-child .points path"


def test_every_plot_is_drawn_within_its_panel(report: Opened) -> None:
    panels = report.page.locator(".panel")
    assert panels.count() >= 6
    for panel in panels.all():
        frame, drawn = panel.bounding_box(), panel.locator(".main-svg").first.bounding_box()
        assert frame is not None
        assert drawn is not None
        assert 250 < drawn["width"] <= frame["width"]
        assert panel.locator(".trace, .bars .point").count() >= 2
        assert panel.locator("h3").inner_text()


def test_pointing_at_a_mark_shows_its_figures(report: Opened) -> None:
    report.page.mouse.move(*centre(report.page, FIRST_POINT))
    hover = report.page.locator("#plot-peak .hovertext")
    hover.wait_for()
    # What fits untouched is the same mark for `optimal` as for `original`.
    assert ", 18 layers: peak" in hover.text_content()  # pyright: ignore[reportOperatorIssue]


def test_clicking_on_a_mark_shows_the_command_that_made_it(report: Opened) -> None:
    picked = report.page.locator("#plot-peak .picked")
    assert picked.inner_text() == ""
    point = centre(report.page, FIRST_POINT)
    report.page.mouse.move(*point)
    report.page.locator("#plot-peak .hovertext").wait_for()
    report.page.mouse.click(*point)
    picked.locator("code").wait_for()
    assert ", 18 layers: peak" in picked.inner_text()
    made = picked.locator("code").inner_text()
    assert made.startswith(("python benchmark.py ", "memtrade "))


def test_clicking_on_a_name_in_the_legend_hides_its_line(report: Opened) -> None:
    panel = report.page.locator("#plot-time .panel").first
    shown = "els => els.filter(e => e.style.opacity !== '0.5').length"
    entries = panel.locator(".legend .traces")
    before = entries.evaluate_all(shown)
    lines = panel.locator(".scatterlayer .trace").count()
    panel.locator(".legendtoggle").first.click()
    report.page.wait_for_function(
        "([selector, n]) => document.querySelectorAll(selector).length < n",
        arg=["#plot-time .panel:first-child .scatterlayer .trace", lines],
    )
    assert entries.evaluate_all(shown) == before - 1


def test_the_budget_question_is_answered(report: Opened) -> None:
    page = report.page
    page.select_option("#ask-step", label="resnet-50, batch 32")
    answer = page.locator("#ask-answer")
    page.fill("#ask-budget", "100000")
    assert "Within 100,000 MB, the least step time: original" in answer.inner_text()
    page.fill("#ask-budget", "600")
    assert page.locator("#ask-answer strong").inner_text() != "original"
    assert "× original's time" in answer.inner_text()
    page.fill("#ask-budget", "1")
    assert answer.inner_text().startswith("Nothing measured here fits 1 MB: the least is")
    page.locator("#ask-slider").fill("1000")
    assert page.locator("#ask-answer strong").inner_text() == "original"


def test_the_step_of_the_trade_off_can_be_chosen(report: Opened) -> None:
    heading = report.page.locator("#plot-trade h3")
    first = heading.inner_text()
    report.page.select_option("#trade-step", index=1)
    assert heading.inner_text() != first
    assert report.page.locator("#plot-trade .scatterlayer .trace").count() >= 4


def test_a_phone_scrolls_tables_and_not_the_page(browser: Browser, report_path: Path) -> None:
    opened = open_page(browser, report_path, width=390)
    page = opened.page
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    scrolls = "e => e.scrollWidth > e.clientWidth"
    assert page.locator("#table-resnet-32 .scroll").evaluate(scrolls)
    for drawn in page.locator(".main-svg").all():
        box = drawn.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 390
    assert opened.problems == []
    page.close()


def test_plots_follow_light_and_dark(browser: Browser, report_path: Path) -> None:
    opened = open_page(browser, report_path, scheme="dark")
    page = opened.page
    ink = "() => getComputedStyle(document.querySelector('#plot-peak .xtick text')).fill"
    background = "() => getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ink), page.evaluate(background)
    page.emulate_media(color_scheme="light")
    page.wait_for_function(f"before => ({ink})() !== before", arg=dark[0])
    assert page.evaluate(background) != dark[1]
    assert opened.problems == []
    page.close()


def test_the_checks_notice_what_is_wrong(browser: Browser, report_path: Path) -> None:
    broken = report_path.with_name("broken.html")
    planted = "<img src='http://127.0.0.1:9/x.png'><script>missing()</script></body>"
    page = report_path.read_text(encoding="utf-8").replace("</body>", planted)
    broken.write_text(page, encoding="utf-8")
    opened = open_page(browser, broken)
    kinds = {problem.split(":")[0] for problem in opened.problems}
    assert kinds >= {"console", "error"}
    opened.page.close()
