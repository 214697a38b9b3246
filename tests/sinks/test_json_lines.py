"""Files of JSON lines: one per epoch, each exactly once, in every form."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from zset_join.core.epochs import ChainLink
from zset_join.core.errors import OptionError, SinkError
from zset_join.core.relation import Relation
from zset_join.pipeline import FunctionSink, Pipeline, changes, records
from zset_join.pipeline import functions as F  # noqa: N812 - PySpark's own habit
from zset_join.sinks.json_lines import JsonLinesSink
from zset_join.zset import ZSet

SCHEMA = pa.schema({"id": pa.int64(), "v": pa.string()})
ANSWER = Relation(name="answer", schema=SCHEMA, primary_key=("id",), mode="changelog")
ONE = ZSet.of({"id": [1], "v": ["a"]}, schema=SCHEMA)


def opened(directory: Path, form: str = "upsert", query_id: str = "q") -> JsonLinesSink:
    sink = JsonLinesSink(directory, form)
    sink.open(ANSWER, query_id)
    return sink


def lines(directory: Path) -> list[dict[str, str | None]]:
    return [
        json.loads(line) for path in sorted(directory.glob("*.jsonl")) for line in path.read_text(encoding="utf-8").splitlines()
    ]


def test_what_a_pipeline_writes_another_pipeline_reads(tmp_path: Path) -> None:
    orders = changes("orders", {"id": pa.int64(), "city": pa.string()}, keys="id")
    by_city = orders.groupBy("city").agg(F.count().alias("orders"))
    heard: list[pa.Table] = []
    outputs = [
        JsonLinesSink(tmp_path, "debezium", ["city"]),
        FunctionSink(lambda _, table: heard.append(table), form="debezium", key=["city"]),
    ]
    pipeline = Pipeline(by_city, outputs=outputs)
    pipeline.step({"orders": [{"id": 1, "city": "Rome"}, {"id": 2, "city": "Rome"}, {"id": 3, "city": "Oslo"}]})
    pipeline.step({"orders": [{"id": 2, "city": "Oslo"}]})

    for given in (lines(tmp_path), [row for table in heard for row in table.to_pylist()]):
        follower = Pipeline(records("cities", "debezium-json", by_city.schema, keys="city"))
        follower.step({"cities": given})
        assert sorted(follower.view().to_pylist(), key=repr) == sorted(pipeline.view().to_pylist(), key=repr)
    pipeline.close()


def test_an_epoch_that_comes_again_writes_nothing(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    sink.write(0, [ONE], link=ChainLink("d0"))
    sink = opened(tmp_path)

    assert sink.last_epoch() == 0
    assert sink.write(0, [ONE], link=ChainLink("d0")).replayed
    assert lines(tmp_path) == [{"key": '{"id":1}', "value": '{"id":1,"v":"a"}'}]


def test_an_epoch_of_another_chain_is_refused(tmp_path: Path) -> None:
    opened(tmp_path).write(0, [ONE], link=ChainLink("d0"))

    with pytest.raises(SinkError) as refused:
        opened(tmp_path).write(1, [ONE], link=ChainLink("d1", "other"))
    assert refused.value.code == "SINK_OTHER_CHAIN"


def test_another_query_or_form_is_refused(tmp_path: Path) -> None:
    opened(tmp_path)

    codes = []
    for form, query in (("upsert", "another"), ("weight", "q")):
        with pytest.raises(SinkError) as refused:
            opened(tmp_path, form, query)
        codes.append(refused.value.code)
    assert codes == ["SINK_QUERY_ID", "SINK_SCHEMA"]


def test_a_form_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="a form is one of"):
        JsonLinesSink(tmp_path, "canal")
    with pytest.raises(OptionError, match="is unknown"):
        FunctionSink(print, form="canal")


def test_a_closed_sink_refuses(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    sink.close()
    with pytest.raises(SinkError, match="closed"):
        sink.write(0, [])
