"""A view in a real PostgreSQL holds the sum of all answers, whatever is retried."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from tests.pipeline.test_durable_changes import BY_CITY, COUNTED, JOINED, MORE, ROWS, held
from tools.servers.postgres_server import PostgresServer
from zset_join.checkpoint.reading import query_plan
from zset_join.core.epochs import ChainLink
from zset_join.core.errors import SinkError
from zset_join.core.relation import Relation
from zset_join.expressions import col
from zset_join.pipeline import Pipeline
from zset_join.sinks.postgres_view import PostgresViewSink
from zset_join.sinks.unfit_values import fitting
from zset_join.zset import ZSet

SCHEMA = pa.schema({"id": pa.int64(), "k": pa.int64(), "v": pa.string()})
ANSWER = Relation(name="answer", schema=SCHEMA, mode="changelog")
Line = tuple[int | None, int | None, str | None, int]


@pytest.fixture
def database(postgres: PostgresServer) -> PostgresServer:
    postgres.clear()
    return postgres


def changes(*lines: Line) -> list[ZSet]:
    rows = {name: [line[at] for line in lines] for at, name in enumerate(SCHEMA.names)}
    return [ZSet.of(rows, [line[3] for line in lines], schema=SCHEMA)]


def opened(database: PostgresServer, key: Sequence[str] | None = None, query_id: str = "q") -> PostgresViewSink:
    sink = PostgresViewSink(database.conninfo, 'my view; "x"', key)
    sink.open(ANSWER, query_id)
    return sink


def contents(database: PostgresServer) -> list[tuple[Any, ...]]:
    return sorted(database.execute('SELECT id, k, v FROM "my view; ""x"""'), key=repr)


@pytest.mark.parametrize("key", [None, ["id", "k"]])
def test_the_view_holds_the_sum_of_all_answers_also_where_a_key_is_null(
    database: PostgresServer, key: list[str] | None
) -> None:
    sink = opened(database, key)

    sink.write(0, changes((1, None, "a", 1), (2, 3, None, 1), (2, 4, "", 1)))
    sink.write(1, changes((1, None, "a", -1), (1, None, "b", 1)))
    sink.close()

    assert contents(database) == [(1, None, "b"), (2, 3, None), (2, 4, "")]


def test_a_row_without_a_key_is_there_as_often_as_its_weight(database: PostgresServer) -> None:
    sink = opened(database)

    sink.write(0, changes((1, 1, "a", 3)))
    sink.write(1, [*changes((1, 1, "a", 2)), *changes((1, 1, "a", -4))])
    sink.close()

    assert contents(database) == [(1, 1, "a")]


def test_an_epoch_that_comes_again_changes_nothing(database: PostgresServer) -> None:
    sink = opened(database)
    sink.write(0, changes((1, 1, "a", 1)))
    sink.close()

    again = opened(database)

    assert again.last_epoch() == 0
    assert again.write(0, changes((1, 1, "a", 1))).replayed
    assert again.read().to_pylist() == [{"id": 1, "k": 1, "v": "a"}]
    again.close()


@pytest.mark.parametrize(("key", "code"), [(None, "SINK_RETRACTION"), (["id"], "SINK_RETRACTION")])
def test_a_retraction_of_a_row_that_is_not_there_is_refused_and_undone(
    database: PostgresServer, key: list[str] | None, code: str
) -> None:
    sink = opened(database, key)
    sink.write(0, changes((1, 1, "a", 1)))

    with pytest.raises(SinkError, match="retracts row") as refused:
        sink.write(1, changes((1, 1, "other", -1), (2, 2, "b", 1)))

    assert refused.value.code == code
    assert sink.last_epoch() == 0
    sink.close()
    assert contents(database) == [(1, 1, "a")]


@pytest.mark.parametrize("lines", [[(1, 2, "b", 1)], [(7, 1, "a", 1), (7, 2, "b", 1)], [(7, 1, "a", 2)]])
def test_two_live_rows_with_one_key_are_refused(database: PostgresServer, lines: list[Line]) -> None:
    sink = opened(database, ["id"])
    sink.write(0, changes((1, 1, "a", 1)))

    with pytest.raises(SinkError, match="two live rows claim"):
        sink.write(1, changes(*lines))

    sink.close()
    assert contents(database) == [(1, 1, "a")]


def test_others_read_whole_epochs_while_the_view_is_written(database: PostgresServer) -> None:
    sink = opened(database)
    sink.write(0, changes((1, 1, "a", 1)))
    seen: list[list[tuple[Any, ...]]] = []

    def answer() -> Iterator[ZSet]:
        yield from changes((1, 1, "a", -1))
        seen.append(contents(database))
        yield from changes((2, 2, "b", 1))

    sink.write(1, answer())
    sink.close()

    assert seen == [[(1, 1, "a")]]
    assert contents(database) == [(2, 2, "b")]


def test_the_view_of_another_query_is_refused(database: PostgresServer) -> None:
    opened(database).close()

    with pytest.raises(SinkError, match="belongs to query") as refused:
        opened(database, query_id="another")

    assert refused.value.code == "SINK_QUERY_ID"


def test_a_table_of_that_name_is_left_alone(database: PostgresServer) -> None:
    database.execute('CREATE TABLE "my view; ""x""" (x int)')

    with pytest.raises(SinkError, match="something else of that name"):
        opened(database)


def test_every_type_comes_back(database: PostgresServer) -> None:
    moment = datetime.datetime(2024, 2, 29, 12, 30, 15, 123456)
    schema = pa.schema(
        {
            "b": pa.bool_(),
            "i": pa.int8(),
            "u": pa.uint64(),
            "r": pa.float32(),
            "f": pa.float64(),
            "s": pa.large_string(),
            "x": pa.binary(),
            "n": pa.decimal128(20, 4),
            "d": pa.date32(),
            "t": pa.timestamp("us"),
            "z": pa.timestamp("us", tz="UTC"),
        }
    )
    values = [
        True,
        -128,
        2**64 - 1,
        1.5,
        float("-inf"),
        'a"b,\n\\.',
        b"\x00\xff",
        decimal.Decimal("-1.2345"),
        moment.date(),
        moment,
    ]
    row = dict(zip(schema.names, [*values, moment.replace(tzinfo=datetime.UTC)], strict=True))
    rows = pa.RecordBatch.from_pylist([row, dict.fromkeys(schema.names)], schema=schema)
    sink = PostgresViewSink(database.conninfo, "types")
    sink.open(Relation(name="types", schema=schema, mode="changelog"), "q")

    sink.write(0, [ZSet.of(rows)])

    assert sorted(sink.read().to_pylist(), key=repr) == sorted(rows.to_pylist(), key=repr)
    sink.write(1, [ZSet.of(rows, [-1, -1])])
    assert sink.read().num_rows == 0
    sink.close()


def test_a_server_that_ended_is_reported_without_the_password(tmp_path_factory: pytest.TempPathFactory) -> None:
    server = PostgresServer(tmp_path_factory.mktemp("ending"), password="hunter2").start()
    sink = PostgresViewSink(server.conninfo, "view")
    sink.open(ANSWER, "q")
    server.kill()

    with pytest.raises(SinkError) as reported:
        sink.write(0, changes((1, 1, "a", 1)))

    assert reported.value.code == "SINK_IO"
    assert "hunter2" not in f"{reported.value} {sink!r} {reported.value.facts}"
    sink.close()
    with pytest.raises(SinkError) as refused:
        sink.open(ANSWER, "q")
    assert "hunter2" not in f"{refused.value} {refused.value.facts}"


def test_an_epoch_of_another_chain_is_refused(database: PostgresServer) -> None:
    sink = opened(database)
    sink.write(0, changes((1, 1, "a", 1)), link=ChainLink("d0"))
    sink.write(1, [], link=ChainLink("d1", "d0"))
    sink.close()
    sink = opened(database)

    assert sink.write(1, [], link=ChainLink("d1", "d0")).replayed
    with pytest.raises(SinkError, match="another one") as refused:
        sink.write(1, changes((2, 2, "b", 1)), link=ChainLink("other", "d0"))
    sink.close()

    assert (refused.value.code, contents(database)) == ("SINK_OTHER_CHAIN", [(1, 1, "a")])


def test_a_row_is_refused_before_the_commit_or_taken_whatever_its_values_are(database: PostgresServer) -> None:
    times = [
        -(2**63),
        -62_135_596_800_000_001,
        -62_135_596_800_000_000,
        971_890_963_199_999_999,
        971_890_963_200_000_000,
        2**63 - 1,
    ]
    days = [-(2**31), -719_163, -719_162, 11_248_737, 11_248_738, 2**31 - 1]
    columns = {
        "at": pa.array(times, pa.int64()).view(pa.timestamp("us")),
        "instant": pa.array(times, pa.int64()).view(pa.timestamp("us", "UTC")),
        "day": pa.array(days, pa.int32()).view(pa.date32()),
        "number": pa.array([float("nan"), float("inf"), float("-inf"), 5e-324, 1.7976931348623157e308, -0.0]),
        "text": pa.array(["\0", "b\0c", "\ufffe", "\\.", "\U0010ffff", ""]),
        "long": pa.array(
            ["".join(chr(0x4E00 + (at * 7919 + row * 37) % 20_000) for at in range(850 + 10 * row)) for row in range(6)]
        ),
    }
    batches = [pa.table({name: column}) for name, column in columns.items()]
    table = pa.concat_tables(batches, promote_options="default").append_column("k", pa.array(range(36)))
    rows = table.combine_chunks().to_batches()[0]
    sink = PostgresViewSink(database.conninfo, "extremes", ["k", "long"])
    sink.open(Relation(name="answer", schema=rows.schema, mode="changelog"), "q")
    delta = ZSet(rows, np.ones(len(rows), np.int64))

    kept = fitting(sink, delta, drops=True, epoch=0)
    sink.write(0, [kept])
    sink.close()

    assert len(kept) == 36 - (4 + 4 + 4 + 0 + 2 + 4), "times and days beyond, U+0000, keys of more than 2,600 bytes"
    assert database.execute("SELECT count(*) FROM extremes") == [(len(kept),)]


def test_views_written_together_have_an_epoch_all_or_none(database: PostgresServer) -> None:
    first, second = (PostgresViewSink(database.conninfo, name, key) for name, key in (("bag", None), ("keyed", ["id"])))
    for sink in (first, second):
        sink.open(ANSWER, "q")
    assert first.database == second.database

    with first.together([second]):
        first.write(0, changes((1, 1, "a", 1)))
        second.write(0, changes((1, 1, "a", 1)))
    with pytest.raises(SinkError), first.together([second]):  # noqa: PT012 - the second one fails behind the first one
        first.write(1, changes((2, 2, "b", 1)))
        second.write(1, changes((2, 2, "b", 1), (2, 3, "c", 1)))

    assert [first.last_epoch(), second.last_epoch()] == [0, 0]
    assert [sink.read()["id"].to_pylist() for sink in (first, second)] == [[1], [1]]
    first.close()
    second.close()


@pytest.mark.parametrize("key", ["city", None])
def test_the_columns_of_a_changed_query_come_with_its_difference_in_one_transaction(
    database: PostgresServer, tmp_path: Path, key: str | None
) -> None:
    grouped, counted = (BY_CITY, COUNTED) if key else (JOINED.select("city"), JOINED.select("city", twice=col("total") * 2))
    with Pipeline(grouped, tmp_path, outputs=[PostgresViewSink(database.conninfo, "v")]) as pipeline:
        pipeline.step(ROWS)
        with mock.patch.object(PostgresViewSink, "_apply", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            pipeline.evolve(counted)
    before = sorted(database.execute("SELECT * FROM v"))
    with Pipeline(counted, tmp_path, outputs=[PostgresViewSink(database.conninfo, "v")]) as again:
        changed = (sorted(database.execute("SELECT * FROM v")), held(again))
        again.step(MORE)
        last = (sorted(database.execute("SELECT * FROM v")), held(again))

    assert {len(row) for row in before} == {2 if key else 1}
    assert changed[0] == changed[1]
    assert last[0] == last[1]


def test_a_kill_at_any_statement_of_a_change_leaves_the_view_of_one_query_or_the_other(
    database: PostgresServer, tmp_path: Path
) -> None:
    """The connection is gone before each of its statements in turn; the next start gives the table what it lacks, once."""

    class Killed(BaseException):
        pass

    execute, number, was_killed = psycopg.Connection.execute, 0, True
    while was_killed:
        database.clear()
        place, left = tmp_path / str(number), [number]

        def counted(self: Any, *given: Any, left: list[int] = left, **more: Any) -> Any:
            if not left[0]:
                self.close()
                raise Killed
            left[0] -= 1
            return execute(self, *given, **more)

        was_killed = False
        with Pipeline(BY_CITY, place, outputs=[PostgresViewSink(database.conninfo, "v")]) as pipeline:
            pipeline.step(ROWS)
            try:
                with mock.patch.object(psycopg.Connection, "execute", counted):
                    pipeline.evolve(COUNTED)
            except Killed:
                was_killed = True
        has_changed = query_plan(str(place)).output.schema.names == ["city", "t", "n"]
        with Pipeline(COUNTED if has_changed else BY_CITY, place, outputs=[PostgresViewSink(database.conninfo, "v")]) as again:
            changed = (sorted(database.execute("SELECT * FROM v")), held(again))
            again.step(MORE)
            last = (sorted(database.execute("SELECT * FROM v")), held(again))
        assert (number, changed[0]) == (number, changed[1])
        assert (number, last[0]) == (number, last[1])
        number += 1

    assert number > 5
