"""What was set aside is listed with its bytes and place, and sent again once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from zset_join.cli import _parser, _replay_in_pipeline, main
from zset_join.console import WatchedCheckpoint, open_console
from zset_join.console.running import allowed_actions
from zset_join.core.errors import BadInputError, OptionError, StateError
from zset_join.pipeline import Pipeline, records
from zset_join.stages import StageOptions
from zset_join.tools.dead_letters import read_letters, send_to_kafka

GOOD = {"value": b'{"op":"c","after":{"id":1,"total":2}}', "topic": "shop", "partition": 0, "offset": 7}
BROKEN = {"value": b'\xff{"op":', "key": b'{"id":2}', "topic": "shop", "partition": 0, "offset": 8}
TOO_LARGE = {"value": b'{"op":"c","after":{"id":3,"total":99999}}', "topic": "shop", "partition": 1, "offset": 0}
GIVEN = pa.schema(
    {"key": pa.binary(), "value": pa.binary(), "topic": pa.string(), "partition": pa.int32(), "offset": pa.int64()}
)


def pipeline(directory: Path | None, *, policy: str = "quarantine", decimals: str = "int16") -> Pipeline:
    total = {"int16": pa.int16(), "int64": pa.int64()}[decimals]
    orders = records("orders", "debezium-json", pa.schema({"id": pa.int64(), "total": total}), keys="id")
    return Pipeline(orders.select("id"), directory, options=StageOptions(on_bad_input=policy))


def fed(*given: dict[str, object]) -> dict[str, pa.Table]:
    return {"orders": pa.Table.from_pylist(list(given), schema=GIVEN)}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with pipeline(tmp_path / "state") as opened:
        opened.step(fed(GOOD, BROKEN, TOO_LARGE))
        assert opened.progress["undecodable"] == {"orders": 2}
        assert opened.progress["rows"] == {"orders": 1}
    return tmp_path / "state"


def test_records_are_listed_with_bytes_place_and_reason(directory: Path) -> None:
    assert [
        (one["stream"], one["epoch"], one["topic"], one["partition"], one["offset"], one["code"], one["key"], one["value"])
        for one in read_letters(directory).to_pylist()
    ] == [
        ("orders", 0, "shop", 0, 8, "UNDECODABLE_RECORD", BROKEN["key"], BROKEN["value"]),
        ("orders", 0, "shop", 1, 0, "UNDECODABLE_VALUE", None, TOO_LARGE["value"]),
    ]
    assert '"total"' in read_letters(directory, code="UNDECODABLE_VALUE")["reason"][0].as_py()


def test_the_command_line_lists_them(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dead-letters", str(directory)]) == 0
    table = capsys.readouterr().out
    assert main(["dead-letters", str(directory), "--json", "--code", "UNDECODABLE_RECORD"]) == 0
    line = json.loads(capsys.readouterr().out)

    assert "UNDECODABLE_VALUE" in table
    assert "2 dead letters" in table
    assert (line["key"], line["value_base64"], line["offset"]) == ('{"id":2}', "/3sib3AiOg==", 8)


def test_a_pipeline_takes_them_again_exactly_once(directory: Path) -> None:
    with pipeline(directory) as opened:
        assert opened.replay(code="UNDECODABLE_VALUE") == 1
        assert opened.replay(code="UNDECODABLE_VALUE") == 1  # it was set aside again: no other type can read it
        assert opened.epoch == 3

    letters = read_letters(directory)
    assert letters["replayed"].to_pylist() == [False, True, True, False]
    assert set(letters["offset"].to_pylist()) == {8, 0}


def test_a_replay_that_fails_changes_nothing(directory: Path) -> None:
    with pipeline(directory, policy="error") as opened:
        with pytest.raises(BadInputError, match="cannot be read"):
            opened.replay()
        assert opened.epoch == 1

    assert read_letters(directory)["replayed"].to_pylist() == [False, False]


def test_a_replay_that_was_killed_before_it_was_marked_is_known_from_the_commit_record(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pipeline(directory) as opened:
        monkeypatch.setattr("zset_join.runners.local.taking.mark_places", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            opened.replay()

    assert read_letters(directory)["replayed"].to_pylist() == [True, True, False, False]


def test_a_program_that_returns_the_pipeline_takes_them(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop_to_replay.py").write_text(
        f"from tests.test_dead_letters import pipeline\ndef view():\n    return pipeline({str(directory)!r})\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    assert main(["dead-letters", str(directory), "--replay", "shop_to_replay:view"]) == 0
    assert capsys.readouterr().out == "2 sent again to shop_to_replay:view\n"


def test_the_page_of_the_console_gives_them_to_a_program_where_that_is_allowed(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "shop_of_the_page.py").write_text(
        f"from tests.test_dead_letters import pipeline\ndef view():\n    return pipeline({str(directory)!r})\n",
        encoding="utf-8",
    )
    words = ["console", str(directory), "--allow-actions", "--replay", "shop_of_the_page:view"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        patch.setattr(sys, "path", [str(tmp_path), *sys.path])
        actions = allowed_actions(_parser().parse_args(words), _replay_in_pipeline)
        with open_console(WatchedCheckpoint(directory), actions=actions) as console:
            own = f"http://127.0.0.1:{console.port}"
            with httpx.Client(base_url=own, timeout=60) as client:
                token = client.get(console.url).headers["location"].removeprefix("/#actions=")
                allowed = {"Origin": own, "X-CSRF-Token": token}
                assert client.post("/api/actions/replay", headers=allowed).json() == {
                    "done": "2 sent again to shop_of_the_page:view"
                }
                with pipeline(directory):
                    refused = client.post("/api/actions/replay", headers=allowed)
    assert refused.status_code == 422
    assert read_letters(directory)["replayed"].to_pylist() == [True, True, False, False]


def test_a_file_of_them_can_be_fed_again(directory: Path, tmp_path: Path) -> None:
    target = tmp_path / "again.jsonl"
    assert main(["dead-letters", str(directory), "--replay", str(target), "--code", "UNDECODABLE_VALUE"]) == 0
    assert main(["dead-letters", str(directory), "--replay", str(tmp_path / "rest.jsonl")]) == 0

    lines = [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]
    wider = pipeline(None, decimals="int64")
    assert wider.step({"orders": [{"value": line["value"], "offset": line["offset"]} for line in lines]}).to_pylist() == [
        ((3,), 1)
    ]
    assert len((tmp_path / "rest.jsonl").read_text(encoding="utf-8").splitlines()) == 1


def test_a_file_that_is_there_is_left_alone(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dead-letters", str(directory), "--replay", __file__]) == 1
    assert "already exists" in capsys.readouterr().err


def test_rows_do_not_go_to_kafka(tmp_path: Path) -> None:
    letters = pa.Table.from_pylist([{"row": '{"id": 1}', "topic": None, "value": None, "key": None}])
    with pytest.raises(OptionError, match="only records can go to Kafka") as refused:
        send_to_kafka(letters, "kafka://127.0.0.1:9092")
    assert refused.value.code == "REPLAY"


def test_a_place_without_a_checkpoint_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="there is no checkpoint"):
        read_letters(tmp_path)


def test_a_damaged_file_is_named(directory: Path) -> None:
    (directory / "dead-letters" / f"{0:020d}.parquet").write_bytes(b"PAR1")
    with pytest.raises(StateError, match="cannot be read as a file of dead letters") as reported:
        read_letters(directory)
    assert reported.value.code == "DEAD_LETTERS"


def test_an_attempt_that_did_not_count_is_not_listed(directory: Path) -> None:
    written = directory / "dead-letters"
    (written / f"{1:020d}.parquet").write_bytes((written / f"{0:020d}.parquet").read_bytes())
    assert read_letters(directory)["epoch"].to_pylist() == [0, 0]


def test_what_a_query_inside_spark_put_aside_is_listed_alike(directory: Path) -> None:
    from zset_join.core.epochs import Tick
    from zset_join.runners.common.rejected import Rejected
    from zset_join.runners.spark.worker.quarantine import DeadLetters, publish_dead_letters
    from zset_join.zset import ZSet

    place = str(directory / "quarantine")
    raw = {
        "said": "UNDECODABLE_RECORD",
        "topic": "shop",
        "partition": "0",
        "offset": "8",
        "key": '{"id":2}',
        "value": "{broken",
    }
    schema = pa.schema({"id": pa.int64()})
    rejected = Rejected()
    reasons = [f"the record cannot be read: {json.dumps(raw)}", "has NULL in its primary key"]
    rejected.add(
        ZSet.of(pa.table({"id": pa.array([None, 4], pa.int64())})), ["UNDECODABLE_RECORD", "NULL_PRIMARY_KEY"], reasons
    )
    writer = DeadLetters(directory=place, query_id="q", names=("orders",), schemas=(schema,))
    publish_dead_letters(place, writer.write(Tick(0), 0, {"orders": rejected}))

    found = [one for one in read_letters(directory).to_pylist() if one["file"].startswith("epoch=")]

    assert [(one["offset"], one["key"], one["value"], one["row"], one["reason"]) for one in found] == [
        (8, b'{"id":2}', b"{broken", None, "the record cannot be read (UNDECODABLE_RECORD)"),
        (None, None, None, '{"id": 4}', "has NULL in its primary key"),
    ]
