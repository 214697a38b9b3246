"""The console shows a pipeline in memory, which answers while it runs."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.console.shop import run, shop
from zset_join.runners.local.watched import WatchedPipeline


def watched(pipeline: object) -> WatchedPipeline:
    return WatchedPipeline(pipeline, pipeline._watching, name="shop")  # type: ignore[attr-defined, arg-type]


def test_nothing_is_kept_before_a_console_is_open() -> None:
    with shop() as pipeline:
        run(pipeline, 2)
        assert list(watched(pipeline).epochs(-1)) == []
        with pipeline.console() as console:
            run(pipeline, 2, first=2)
            assert console.url.startswith("http://127.0.0.1:")
        assert [one["epoch"] for one in watched(pipeline).epochs(-1)] == [1, 2, 3]


def test_every_question_has_an_answer_in_memory() -> None:
    with shop() as pipeline, pipeline.console():
        run(pipeline, 5)
        page = watched(pipeline)
        newest = page.epochs(3)[0]
        assert newest["stages"]["join-0"]["rows_in"] == 5
        assert newest["remembers"]["join-0"]["left_rows"] == 17
        assert page.changes()["epochs"][-1]["epoch"] == 4
        assert page.rows("revenue", {"city": "Paris"})["total"] == 1
        assert page.dead_letters()["letters"][0]["code"] == "NULL_PRIMARY_KEY"
        hot = {(one["stage"], one["input"]): one["keys"] for one in page.hot_keys()["stages"]}
        assert sum(count for _, count in hot["join-0", "orders"]) == 26  # what was set aside had come too
        assert [node["name"] for node in page.overview()["plan"]["nodes"] if node["kind"] == "stage"] == [
            "join-0",
            "aggregate-1",
        ]


def test_verify_and_explain_run_over_what_had_come() -> None:
    with shop() as pipeline, pipeline.console():
        run(pipeline, 3)
        steps: list[str] = []
        verdict = watched(pipeline).verify("revenue", steps.append)
        assert (verdict["equal"], verdict["epoch"], len(steps)) == (True, 2, 3)
        (event,) = watched(pipeline).explain_row("by_order", {"id": "0"})["events"]
        assert [change["input"] for change in event["changes"]] == ["orders", "customers"]


def test_a_verification_does_not_see_later_rows() -> None:
    with shop() as pipeline:
        run(pipeline, 2)
        work = pipeline.verification(view="revenue")
        run(pipeline, 1, first=2)
        assert (work().equal, work().epoch) == (True, 1)


@pytest.mark.parametrize("lasts", [True, False])
def test_the_page_of_a_pipeline_verifies(tmp_path: Path, lasts: bool) -> None:
    with shop(tmp_path if lasts else None) as pipeline, pipeline.console() as console:
        run(pipeline, 2)
        with httpx.Client(base_url=f"http://127.0.0.1:{console.port}", follow_redirects=True) as browser:
            browser.get(console.url)
            text = browser.get("/api/verifying", params={"view": "by_order"}).text
            requested = {"view": "by_order", "where": '{"id": "0"}'}
            history = browser.get("/api/explain_row", params=requested).json()
    assert "event: verdict" in text
    assert '"equal": true' in text
    assert history["events"][0]["epoch"] == 0
