"""Who gets an answer from the console, and what an answer carries."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.console.shop import run, shop
from zset_join.cli import main
from zset_join.console import Action, Console, WatchedCheckpoint, open_console, running
from zset_join.console.serving import STATIC
from zset_join.core.errors import OptionError
from zset_join.storage.trusted_files import kept_token

VENDORED = {
    "dagre.js": "b0ddaf4af1417bec9bd89373a3a3987f081727d6cc6d95fc40dbf85a19bdf3b0",
    "preact-htm.js": "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7",
    "uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uplot.js": "5dd9b3281aa64b461b42d9945f6adb2649d346502b12281a9ae0d46599a80eba",
}
"""Of @dagrejs/dagre 3.1.3, htm 3.1.1 (with Preact inside) and uPlot 1.6.32, as npm has them."""


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    place = tmp_path_factory.mktemp("console") / "shop"
    with shop(place) as pipeline:
        run(pipeline, 3)
    with open_console(WatchedCheckpoint(place)) as console:
        yield console


@pytest.fixture(scope="module")
def browser(console: Console) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{console.port}", follow_redirects=True) as client:
        assert client.get(console.url).status_code == 200
        yield client


PATHS = [
    "/",
    "/metrics",
    "/api/diff",
    "/api/explain_row",
    "/static/vendored/uplot.js",
    "/static/main.js",
    "/api/overview",
    "/api/rows",
    "/api/events",
    "/api/verifying",
    "/api/nothing",
]


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_served_without_the_cookie(console: Console, path: str) -> None:
    assert httpx.get(f"http://127.0.0.1:{console.port}{path}").status_code == 401


def test_the_token_opens_one_browser_once(console: Console, browser: httpx.Client) -> None:
    assert browser.get("/api/overview").json()["trouble"] == []
    assert httpx.get(console.url).status_code == 401


def test_the_cookie_is_kept_from_scripts_and_other_sites(tmp_path: Path) -> None:
    with open_console(WatchedCheckpoint(tmp_path)) as console:
        set_cookie = httpx.get(console.url).headers["set-cookie"]
    assert "HttpOnly" in set_cookie
    assert "SameSite=strict" in set_cookie


def test_another_host_name_reaches_nothing(console: Console, browser: httpx.Client) -> None:
    assert browser.get("/api/overview", headers={"Host": f"evil.example:{console.port}"}).status_code == 421


@pytest.mark.parametrize("verb", ["POST", "PUT", "DELETE"])
def test_no_verb_writes(browser: httpx.Client, verb: str) -> None:
    assert browser.request(verb, "/api/overview").status_code == 405


@pytest.fixture
def acting(tmp_path: Path) -> Iterator[tuple[httpx.Client, str, list[str]]]:
    done: list[str] = []

    def send() -> str:
        done.append("sent")
        return "1 sent"

    with open_console(WatchedCheckpoint(tmp_path), actions={"replay": Action("send again", send)}) as console:
        client = httpx.Client(base_url=f"http://127.0.0.1:{console.port}")
        token = client.get(console.url).headers["location"].removeprefix("/#actions=")
        yield client, token, done
        client.close()


def test_an_allowed_action_needs_cookie_origin_and_token(acting: tuple[httpx.Client, str, list[str]]) -> None:
    client, token, done = acting
    own, place = str(client.base_url).rstrip("/"), "/api/actions/replay"
    good = {"Origin": own, "X-CSRF-Token": token}

    assert client.get("/api/actions").json() == {"replay": "send again"}
    assert httpx.post(own + place, headers=good).status_code == 401
    for headers in ({}, {"Origin": own}, {"X-CSRF-Token": token}, {**good, "Origin": "http://127.0.0.1:1"}):
        assert client.post(place, headers=headers).status_code == 403
    assert client.post("/api/overview", headers=good).status_code == 405
    assert client.request("PUT", place, headers=good).status_code == 405
    assert client.post("/api/actions/other", headers=good).status_code == 404
    assert done == []

    assert client.post(place, headers=good).json() == {"done": "1 sent"}
    assert done == ["sent"]


def test_an_action_that_fails_in_code_of_the_user_is_answered_with_the_reason(tmp_path: Path) -> None:
    def fail() -> str:
        raise KeyError("no such topic")

    with open_console(WatchedCheckpoint(tmp_path), actions={"replay": Action("send again", fail)}) as console:
        own = f"http://127.0.0.1:{console.port}"
        with httpx.Client(base_url=own) as client:
            token = client.get(console.url).headers["location"].removeprefix("/#actions=")
            answer = client.post("/api/actions/replay", headers={"Origin": own, "X-CSRF-Token": token})
    assert (answer.status_code, answer.json()["code"]) == (422, "ACTION_FAILED")
    assert "KeyError: 'no such topic'" in answer.json()["message"]


def test_every_answer_confines_the_page_to_its_own_scripts(browser: httpx.Client) -> None:
    policy = browser.get("/").headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy


def test_a_question_that_cannot_be_answered_is_an_answer(browser: httpx.Client) -> None:
    answer = browser.get("/api/rows", params={"table": "by_order", "where": '{"nothing": "1"}'})
    assert (answer.status_code, answer.json()["code"]) == (422, "ROW_QUESTION")
    for where in ("[1]", "[" * 9_000, '{"id": "\\ud800"}', '{"\\ud800": "1"}'):
        refused = browser.get("/api/rows", params={"where": where})
        assert (refused.status_code, refused.json()["code"]) == (422, "ROW_QUESTION")


def test_events_bring_the_epochs_and_the_changelog(browser: httpx.Client) -> None:
    with browser.stream("GET", "/api/events", params={"after": "0"}) as answer:
        text = next(line for line in answer.iter_lines() if line.startswith("data:"))
    assert '"epoch": 2' in text
    assert '"weights"' in text


def test_vendored_scripts_are_those_that_were_taken(browser: httpx.Client) -> None:
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (STATIC / "vendored").glob("*.[jc]s*")}
    assert found == VENDORED
    assert {path.name for path in (STATIC / "vendored").glob("LICENSE.*")} == {
        f"LICENSE.{name}.txt" for name in ("dagre", "htm", "preact", "uplot")
    }


def test_the_page_makes_no_markup_of_values() -> None:
    own = "".join(path.read_text() for path in STATIC.glob("*.js"))
    assert "innerHTML" not in own
    assert "http://" not in own
    assert "https://" not in own


def test_metrics_are_served_to_their_token_which_opens_nothing_else(console: Console, browser: httpx.Client) -> None:
    bearer = {"Authorization": f"Bearer {console.metrics_token}"}
    answered = httpx.get(console.metrics_url, headers=bearer)
    assert answered.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "zset_join_epoch_rows_in{" in answered.text
    assert answered.text == browser.get("/metrics").text
    assert httpx.get(console.metrics_url, headers={"Authorization": "Bearer x"}).status_code == 401
    assert httpx.get(console.metrics_url, headers={**bearer, "Host": "evil.example"}).status_code == 421
    assert httpx.get(f"http://127.0.0.1:{console.port}/api/rows", headers=bearer).status_code == 401


def test_a_token_file_is_made_for_its_owner_alone_and_refused_where_others_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = kept_token(path)
    assert (path.stat().st_mode & 0o777, kept_token(path)) == (0o600, token)
    path.chmod(0o640)
    with pytest.raises(OptionError, match="chmod 600"):
        kept_token(path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(OptionError, match="5 characters"):
        kept_token(path)


@pytest.mark.parametrize("options", [["--allow-actions"], ["--replay", "again.jsonl"]])
def test_actions_are_allowed_and_named_together(tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["console", str(tmp_path), *options]) == 1
    assert "expected both --allow-actions and --replay" in capsys.readouterr().err


def test_a_pipeline_takes_the_letters_of_its_own_directory_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["console", str(tmp_path), "--allow-actions", "--replay", "shop:view", "--dead-letters", str(tmp_path / "other")]
    assert main(words) == 1
    assert "leave --dead-letters out" in capsys.readouterr().err


def test_idle_connections_take_no_descriptors_and_keep_no_browser_out(console: Console, browser: httpx.Client) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with contextlib.ExitStack() as held:
        for _ in range(70):
            held.enter_context(socket.create_connection(("127.0.0.1", console.port)))
        assert httpx.get(console.url).status_code == 401
        of_the_server = len(list(Path("/proc/self/fd").iterdir())) - before - 70
        assert of_the_server <= running.MOST_CONNECTIONS
    assert browser.get("/api/overview").status_code == 200


@pytest.mark.parametrize("begin", [b"", b"GET / HTTP/1.1\r\nX: "])
def test_a_request_that_is_not_complete_in_time_ends_its_connection(
    console: Console, monkeypatch: pytest.MonkeyPatch, begin: bytes
) -> None:
    monkeypatch.setattr(running, "REQUEST_SECONDS", 0.3)
    begun = time.monotonic()
    with socket.create_connection(("127.0.0.1", console.port), timeout=10) as client, contextlib.suppress(OSError):
        client.sendall(begin)
        client.settimeout(0.05)
        while time.monotonic() < begun + 5:
            with contextlib.suppress(TimeoutError):
                if not client.recv(1000):
                    break
            client.sendall(b"a" if begin else b"")
    assert 0.2 < time.monotonic() - begun < 4
