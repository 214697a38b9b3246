"""The console in a real browser: every panel, hostile values, both widths and themes.

`tools/install_chromium.sh` installs the browser, `tools/fetch_axe.sh` the checks of accessibility. `CONSOLE_SCREENSHOTS=DIR` keeps what the pages look like.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, sync_playwright

from tests.console.shop import HOSTILE, run, shop, views
from zset_join.cli import _parser, _replay_in_pipeline
from zset_join.console import QueryAnswers, WatchedCheckpoint, open_console
from zset_join.console.running import allowed_actions
from zset_join.expressions import col
from zset_join.runners.local.checkpoint_diff import diff_of_checkpoint

ROOT = Path(__file__).resolve().parents[2]
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
TABS = ("live", "rows", "verify", "keys", "letters", "waiting", "files", "options")
SERIOUS = """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations
  .filter((one) => ["serious", "critical"].includes(one.impact))
  .map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(" ")}`)"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    subprocess.run(["bash", str(ROOT / "tools" / "install_chromium.sh")], check=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("console") / "shop"
    with shop(place) as pipeline:
        run(pipeline, 12)
    return place


def opened(chromium: Any, url: str, *, width: int = 1280, theme: str = "light") -> tuple[Page, list[str]]:
    page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda line: errors.append(line.text) if line.type == "error" and "422" not in line.text else None)
    page.goto(url)
    page.get_by_role("heading", name="Plan", exact=True).or_(page.get_by_text("The plan cannot be read.")).first.wait_for()
    return page, errors


@pytest.fixture(scope="module")
def axe() -> str:
    subprocess.run(["bash", str(ROOT / "tools" / "fetch_axe.sh")], check=True)
    (script,) = (ROOT / "build").glob("axe-core-*/axe.min.js")
    return script.read_text()


def panel(page: Page, tab: str) -> str:
    page.evaluate("tab => { location.hash = tab; }", tab)
    page.wait_for_timeout(300)
    for busy in (page.locator("main").get_by_text("Reading"), page.locator("main button:disabled")):
        busy.first.wait_for(state="detached")
    return str(page.inner_text("main"))


EXPECTED = {
    "live": ["join-0", "rows/s", "Changelog", "epoch 11, view by_order"],
    "rows": ["Rows that are there now", "Paris"],
    "verify": ["Compares a view"],
    "keys": ["join-0: both sides", "Bob"],
    "letters": ["NULL_PRIMARY_KEY"],
    "waiting": ["Waiting for time"],
    "files": ["have the checksums they were written with", "stopped"],
    "options": ["keeps_inputs", "by_order"],
}


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (1280, "dark"), (400, "light"), (400, "dark")])
def test_every_panel_is_filled_and_nothing_is_wider_than_the_page(chromium: Any, stopped: Path, width: int, theme: str) -> None:
    with open_console(WatchedCheckpoint(stopped)) as console:
        page, errors = opened(chromium, console.url, width=width, theme=theme)
        page.wait_for_selector(".change")
        shots = os.environ.get("CONSOLE_SCREENSHOTS")
        missing = {}
        for tab in TABS:
            text = panel(page, tab) + str(
                page.evaluate("[...document.querySelectorAll('svg text')].map(t => t.textContent).join(' ')")
            )
            missing[tab] = [one for one in EXPECTED[tab] if one not in text]
            if page.evaluate("document.documentElement.scrollWidth") > width:
                missing[tab].append("wider than the page")
            if shots:
                page.screenshot(path=f"{shots}/{tab}-{width}-{theme}.png", full_page=width == 1280)
        assert missing == {tab: [] for tab in TABS}
        assert errors == []
        page.close()


def test_hostile_names_and_values_are_text(chromium: Any, stopped: Path) -> None:
    with open_console(WatchedCheckpoint(stopped)) as console:
        page, errors = opened(chromium, console.url)
        assert HOSTILE in panel(page, "rows")
        assert page.evaluate("window.broken") is None
        assert page.locator("main img, main script").count() == 0
        page.close()
    assert errors == []


def test_a_click_on_a_stage_shows_what_it_remembers_and_its_sql(chromium: Any, stopped: Path) -> None:
    with open_console(WatchedCheckpoint(stopped)) as console:
        page, _ = opened(chromium, console.url)
        page.get_by_role("button", name="join-0").focus()
        page.keyboard.press("Enter")
        text = page.get_by_role("region", name="details of the node").inner_text()
        assert "LEFT JOIN" in text
        assert "left rows" in text
        page.close()


def test_a_running_query_moves_the_page(chromium: Any, tmp_path: Path) -> None:
    with shop(tmp_path) as pipeline, open_console(WatchedCheckpoint(tmp_path)) as console:
        run(pipeline, 2)
        page, errors = opened(chromium, console.url)
        page.get_by_text("epoch 1,", exact=False).first.wait_for()
        run(pipeline, 1, first=2)
        page.get_by_text("epoch 2,", exact=False).first.wait_for(timeout=5000)
        assert page.locator(".pill").inner_text() == "running"
        page.close()
    assert errors == []


def test_a_damaged_checkpoint_shows_what_is_damaged(chromium: Any, tmp_path: Path) -> None:
    with shop(tmp_path) as pipeline:
        run(pipeline, 3)
    log = next((tmp_path / "zset" / "log" / "join-0-0").iterdir())
    log.write_bytes(b"?")
    with open_console(WatchedCheckpoint(tmp_path)) as console:
        page, _ = opened(chromium, console.url)
        assert str(log) in panel(page, "files")
        assert "damaged" in panel(page, "files")
        page.close()


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (400, "dark")])
def test_no_panel_has_a_serious_fault_of_accessibility(chromium: Any, stopped: Path, axe: str, width: int, theme: str) -> None:
    diff = QueryAnswers(
        diff=lambda: diff_of_checkpoint(stopped, {**views(), "by_order": views()["by_order"].where(col("total") > 20)})
    )
    with open_console(WatchedCheckpoint(stopped, diff)) as console:
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, bypass_csp=True)
        page = context.new_page()
        page.goto(console.url)
        page.wait_for_selector(".change")
        page.evaluate(axe)
        found = {}
        for tab in (*TABS, "diff"):
            panel(page, tab)
            found[tab] = page.evaluate(SERIOUS)
        context.close()
    assert found == {tab: [] for tab in (*TABS, "diff")}


def test_dead_letters_are_sent_again_where_actions_are_allowed(chromium: Any, tmp_path: Path) -> None:
    with shop(tmp_path / "shop") as pipeline:
        run(pipeline, 4)
    target = tmp_path / "again.jsonl"
    options = ["console", str(tmp_path / "shop"), "--allow-actions", "--replay", str(target)]
    with open_console(
        WatchedCheckpoint(tmp_path / "shop"), actions=allowed_actions(_parser().parse_args(options), _replay_in_pipeline)
    ) as console:
        page, errors = opened(chromium, console.url)
        assert "#" not in page.url
        panel(page, "letters")
        page.get_by_role("button", name="send again to").click()
        page.get_by_text(f"1 sent again to {target}").wait_for()
        page.get_by_role("cell", name="yes").wait_for()
        page.close()
    assert target.read_text().count("\n") == 1
    assert errors == []


def test_a_changed_query_is_shown_row_by_row(chromium: Any, stopped: Path) -> None:
    changed = {**views(), "by_order": views()["by_order"].where(col("total") > 20)}
    with open_console(WatchedCheckpoint(stopped, QueryAnswers(diff=lambda: diff_of_checkpoint(stopped, changed)))) as console:
        page, errors = opened(chromium, console.url)
        page.keyboard.press("9")
        page.get_by_role("region", name="differences of by_order").wait_for()
        text = page.inner_text("main")
        page.close()
    assert 'view "by_order": adds 0 rows, removes 24, changes 0 of 38' in text
    assert 'view "revenue" is unchanged' in text
    assert errors == []


def test_a_value_of_ten_megabytes_is_shown_in_part(chromium: Any, tmp_path: Path) -> None:
    with shop(tmp_path) as pipeline:
        customer = {"name": HOSTILE * 140_000, "city": "<b>"}
        pipeline.step({"customers": [customer], "orders": [{"id": 1, "customer": customer["name"], "total": 1, HOSTILE: "x"}]})
    with open_console(WatchedCheckpoint(tmp_path)) as console:
        page, errors = opened(chromium, console.url)
        for tab in ("live", "rows", "keys"):
            assert f"({len(customer['name']):,} characters)" in panel(page, tab)
        assert page.evaluate("document.body.innerHTML.length") < 100_000
        assert page.evaluate("window.broken") is None
        page.close()
    assert errors == []
