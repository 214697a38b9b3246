"""Dead letters go back to a real topic, bytes as they were, and a pipeline takes them."""

from __future__ import annotations

import pyarrow as pa

from tools.servers.kafka_broker import KafkaBroker
from zset_join.pipeline import Pipeline, records, run
from zset_join.sinks.kafka_records import send_records
from zset_join.sources.kafka import KafkaSource
from zset_join.stages import StageOptions
from zset_join.tools.dead_letters import read_letters, replay

NOT_UTF8 = b'\xff{"op":"c"}'


def test_dead_letters_are_sent_to_their_topic_again_once(kafka: KafkaBroker, tmp_path) -> None:
    kafka.create_topic("letters")
    config = {"bootstrap.servers": kafka.servers}
    sent = [("letters", b'{"id":1}', b'{"op":"c","after":{"id":1,"n":70000}}', "-"), ("letters", None, NOT_UTF8, "-")]
    assert send_records(config, sent) is None

    def taken(directory: str, n: pa.DataType) -> tuple[list[dict], list[tuple]]:
        table = records("t", "debezium-json", {"id": pa.int64(), "n": n}, keys="id")
        with Pipeline(table, tmp_path / directory, options=StageOptions(on_bad_input="quarantine")) as pipeline:
            run(pipeline, {"t": KafkaSource(config, "letters")}, available_now=True, trigger_seconds=1)
            letters = read_letters(tmp_path / directory).to_pylist()
            return pipeline.view().to_pylist(), [(one["offset"], one["value"], one["code"]) for one in letters]

    assert taken("narrow", pa.int16()) == (
        [],
        [(0, sent[0][2], "UNDECODABLE_VALUE"), (1, NOT_UTF8, "UNDECODABLE_RECORD")],
    )
    for wanted in (2, 0):
        assert replay(tmp_path / "narrow", f"kafka://{kafka.servers}", run=lambda *_: -1) == wanted

    view, letters = taken("wide", pa.int64())
    assert view == [{"id": 1, "n": 70000}]
    assert [one[0] for one in letters] == [1, 3]
