"""Changes of left rows behind the watermark: applied without a bound, counted, listed and refused behind one."""

from __future__ import annotations

import json
import re
import warnings
from contextlib import nullcontext

import pyarrow as pa
import pytest

from zset_join.console.epochs import summary_of_record
from zset_join.core.errors import BadInputError, SqlError
from zset_join.pipeline import Pipeline, StateTtl, appends, changes, versioned
from zset_join.sql import connect
from zset_join.stages.stage import StageOptions
from zset_join.tools.metrics import metrics_text

ORDERS = {"id": pa.int64(), "currency": pa.string(), "t": pa.int64(), "is_deleted": pa.bool_()}
RATES = {"currency": pa.string(), "rate": pa.int64(), "at": pa.int64()}
STRICT, QUARANTINE = StageOptions(), StageOptions(on_bad_input="quarantine")


def order(number, time, *, is_deleted=False):
    return {"id": number, "currency": "EUR", "t": time, "is_deleted": is_deleted}


def rate(number, at):
    return {"currency": "EUR", "rate": number, "at": at}


def priced(**words):
    orders = changes("orders", ORDERS, keys="id", apply_as_deletes="is_deleted", watermark=("t", 0))
    rates = versioned("rates", RATES, keys="currency", version_by="at", delay=0)
    joined = orders.temporal_join(rates, on="currency", as_of="t", emit="eager", is_change_time=True, **words)
    return joined.select("id", "t", "rate")


def run(view, directory=None, options=STRICT):
    """Step to a watermark of 100, with an order and a version far behind it."""
    pipeline = Pipeline(view, directory, options=options)
    pipeline.step({"orders": [order(1, 10), order(2, 100)], "rates": [rate(7, 1), rate(8, 100)]})
    pipeline.step({"orders": [order(3, 101)], "rates": [rate(9, 101)]})
    return pipeline


def shown(pipeline):
    return sorted(tuple(row.values()) for row in pipeline.view().to_pylist())


def letters(pipeline):
    lines = pipeline.dead_letters.to_pylist()
    return [(line["source"], line["code"], line["weight"], json.loads(line["row"])["t"]) for line in lines]


def test_without_a_bound_every_change_of_a_left_row_and_every_late_version_counts():
    pipeline = run(priced())

    pipeline.step({"orders": [order(1, 12), order(2, 100, is_deleted=True), order(4, 3)]})
    pipeline.step({"rates": [rate(6, 5)]})

    assert shown(pipeline) == [(1, 12, 6), (3, 101, 9), (4, 3, 7)]
    assert letters(pipeline) == []


def test_explain_names_what_is_kept_and_why_and_its_bytes():
    text = priced().plan().explain(buckets=1)

    assert 'remembers: versions of "rates", rows of "orders" for corrections, as they may change' in text
    assert 'frees: nothing: rows of "orders" may change at any time, and keep_probe_for sets no bound' in text
    assert 'per row of "orders"' in text
    assert re.search(r"State: temporal_join-1 keeps 3 left rows and 3 right rows in [\d,]+ bytes", run(priced()).explanation())
    assert "what changes behind that bound: an error" in priced(keep_probe_for=5).plan().explain(buckets=1)


@pytest.mark.parametrize(
    "late", [{"orders": [order(1, 10, is_deleted=True)]}, {"orders": [order(5, 20)]}, {"rates": [rate(6, 50)]}]
)
def test_a_change_behind_the_bound_is_an_error_and_the_epoch_is_not_applied(late):
    pipeline = run(priced(keep_probe_for=5))
    before = shown(pipeline)

    with pytest.raises(BadInputError, match=r"LATE_.*Raise keep_probe_for or leave it out"):
        pipeline.step({**late, "orders": [*late.get("orders", []), order(6, 102)]})

    assert (shown(pipeline), pipeline.epoch) == (before, 2)


def test_a_change_between_the_bound_and_the_watermark_is_applied():
    pipeline = run(priced(keep_probe_for=5, late="side_output"))

    pipeline.step({"orders": [order(2, 97)]})

    assert shown(pipeline) == [(1, 10, 7), (2, 97, 7), (3, 101, 9)]


@pytest.mark.parametrize(("words", "options"), [({"late": "side_output"}, STRICT), ({}, QUARANTINE)])
def test_late_changes_are_listed_and_counted_per_epoch_and_in_all_and_warned_of_once(words, options, tmp_path):
    view = priced(keep_probe_for=5, **words)
    pipeline = run(view, tmp_path, options)
    with pytest.warns(UserWarning, match='not applied: 2 of "orders" in epoch 2'):
        pipeline.step({"orders": [order(1, 20)]})
    listed, counted = letters(pipeline), pipeline.progress
    pipeline.close()
    with Pipeline(view, tmp_path, options=options) as again, warnings.catch_warnings():
        warnings.simplefilter("error")
        again.step({"orders": [order(1, 10, is_deleted=True)]})
        again.step({"orders": [order(9, 102)]})
        last, summary = again.progress, summary_of_record(again.directory.last)

    assert listed == [("orders", "LATE_CORRECTION", -1, 10), ("orders", "LATE_ROW", 1, 20)]
    assert (counted["late_changes"], counted["late_changes_total"]) == ({"orders": 2}, {"orders": 2})
    assert (last["late_changes"], last["late_changes_total"]) == ({}, {"orders": 3})
    assert (summary.late_changes, summary.late_changes_total) == ({}, {"orders": 3})
    assert 'source="orders"} 3' in next(
        line for line in metrics_text(tmp_path).splitlines() if line.startswith("zset_join_late_changes_total{")
    )


def test_an_update_behind_the_bound_is_set_aside_whole_with_late_join_too():
    kept = changes("orders", {**ORDERS, "n": pa.int64()}, keys="id", weight_column="n", watermark=("t", 0))
    rates = versioned("rates", RATES, keys="currency", version_by="at", delay=0)
    view = kept.temporal_join(rates, on="currency", as_of="t", emit="eager", late="join", keep_probe_for=5)
    pipeline = Pipeline(view.select("id", "t", "rate"), keep_inputs=True)
    pipeline.step({"orders": [{**order(at, 10 * at), "n": 1} for at in (1, 10)], "rates": [rate(7, 1), rate(8, 100)]})

    with pytest.warns(UserWarning, match="2 of"):
        pipeline.step({"orders": [{**order(1, 10), "n": -1}, {**order(1, 95), "n": 1}, {**order(7, 95), "n": 1}]})

    assert shown(pipeline) == [(1, 10, 7), (7, 95, 7), (10, 100, 8)]
    assert pipeline.verify().equal


def test_late_rows_are_those_of_the_epoch_and_their_total_is_called_so(tmp_path):
    clicks = appends("clicks", {"id": pa.int64(), "at": pa.int64()}, watermark=("at", 0))
    pipeline, found = Pipeline(clicks.dedup(keys="id", order_by="at", keep="last"), tmp_path), []

    for times in ((100,), (5, 100), (101,), (7,)):
        pipeline.step({"clicks": [{"id": time, "at": time} for time in times]})
        found.append((pipeline.progress["late_rows"]["clicks"], pipeline.progress["late_rows_total"]["clicks"]))
        if times == (101,):
            pipeline.close()
            pipeline = Pipeline(clicks.dedup(keys="id", order_by="at", keep="last"), tmp_path)

    values = dict(
        line.rsplit(" ", 1) for line in metrics_text(tmp_path).splitlines() if "late_rows" in line and "#" not in line
    )
    assert found == [(0, 0), (2, 2), (0, 2), (1, 3)]
    assert {name.partition("{")[0]: value for name, value in values.items()} == {
        "zset_join_epoch_late_rows": "1",
        "zset_join_late_rows_total": "3",
    }


@pytest.mark.parametrize(
    ("keep", "late", "outcome", "rows"),
    [
        (None, None, nullcontext(), [(2, 3)]),
        ("100 days", None, nullcontext(), [(2, 3)]),
        ("1 day", None, pytest.raises(BadInputError, match="LATE_CORRECTION"), [(1, 2), (2, 3)]),
        ("1 day", "side_output", pytest.warns(UserWarning, match="not applied: 1 of"), [(1, 2), (2, 3)]),
        ("1 day", "drop", pytest.warns(UserWarning, match="not applied: 1 of"), [(1, 2), (2, 3)]),
    ],
)
def test_sql_keeps_orders_that_change_unless_a_setting_bounds_them(keep, late, outcome, rows):
    session = connect(dialect="flink", keep_inputs=True)
    session.sql("""
        CREATE TABLE orders (id INT PRIMARY KEY NOT ENFORCED, c STRING, t TIMESTAMP(3), WATERMARK FOR t AS t - INTERVAL '1' DAY);
        CREATE TABLE rates (c STRING, rate INT, since TIMESTAMP(3), WATERMARK FOR since AS since - INTERVAL '1' DAY);
        CREATE VIEW newest AS SELECT c, rate, since FROM
            (SELECT *, ROW_NUMBER() OVER (PARTITION BY c ORDER BY since DESC) AS n FROM rates) AS numbered WHERE n = 1;
        SET 'temporal_join_emit' = 'eager';
    """)
    if keep is not None:
        session.sql(f"SET 'keep_probe_for' = '{keep}'")
    if late is not None:
        session.sql(f"SET 'late' = '{late}'")
    query = "SELECT o.id, r.rate FROM orders AS o JOIN newest FOR SYSTEM_TIME AS OF o.t AS r ON o.c = r.c"
    running = session.sql(query).start()
    session.sql("INSERT INTO rates VALUES ('EUR', 2, TIMESTAMP '2025-01-01 00:00:00')")
    session.sql("INSERT INTO orders VALUES (1, 'EUR', TIMESTAMP '2025-01-02 00:00:00')")
    session.sql("INSERT INTO orders VALUES (2, 'EUR', TIMESTAMP '2025-03-01 00:00:00')")
    session.sql("INSERT INTO rates VALUES ('EUR', 3, TIMESTAMP '2025-03-01 00:00:00')")

    with outcome:
        session.sql("DELETE FROM orders WHERE id = 1")

    assert sorted(tuple(row.values()) for row in running.table().to_pylist()) == rows
    assert running.verify().equal


def test_a_setting_of_a_view_routes_late_rows_in_a_directory_as_the_word_does(tmp_path):
    tables = """
        CREATE TABLE orders (id INT, c STRING, t TIMESTAMP(3), WATERMARK FOR t AS t - INTERVAL '1' DAY);
        CREATE TABLE rates (c STRING, rate INT, since TIMESTAMP(3), WATERMARK FOR since AS since - INTERVAL '1' DAY);
        CREATE VIEW newest AS SELECT c, rate, since FROM
            (SELECT *, ROW_NUMBER() OVER (PARTITION BY c ORDER BY since DESC) AS n FROM rates) AS numbered WHERE n = 1;
    """
    query = "SELECT o.id, r.rate FROM orders AS o JOIN newest FOR SYSTEM_TIME AS OF o.t AS r ON o.c = r.c"
    views = [
        f"CREATE MATERIALIZED VIEW v{late} AS {query} SETTINGS late = '{late}'" for late in ("join", "drop", "side_output")
    ]
    with connect(dialect="flink", directory=tmp_path) as session:
        session.sql(tables + ";".join(views))
        session.sql(
            "INSERT INTO rates VALUES ('EUR', 2, TIMESTAMP '2025-01-01 00:00:00'), ('x', 1, TIMESTAMP '2025-03-01 00:00:00')"
        )
        session.sql("INSERT INTO orders VALUES (1, 'EUR', TIMESTAMP '2025-03-01 00:00:00')")
    with connect(dialect="flink", directory=tmp_path) as session:
        session.sql("INSERT INTO orders VALUES (2, 'EUR', TIMESTAMP '2025-01-02 00:00:00')")

        assert {name: rows.column("id").to_pylist() for name, rows in session.views().items()} == {
            "vjoin": [2],
            "vdrop": [],
            "vside_output": [],
        }
        assert [
            (line["code"], json.loads(line["row"])["id"]) for line in session.running[0].whole.dead_letters.to_pylist()
        ] == [("LATE_ROW", 2)]
        with pytest.raises(SqlError, match="OPTION_VALUE"):
            session.sql("SET late = 'ignore'")


@pytest.mark.parametrize(
    ("row", "listed"),
    [
        (order(1, 10, is_deleted=True), [("orders", "LATE_CORRECTION", -1, 10)]),
        (order(1, 20), [("orders", "LATE_CORRECTION", -1, 10), ("orders", "LATE_ROW", 1, 20)]),
    ],
)
def test_changes_of_forgotten_rows_are_late_changes_and_where_rows_are_retracted_none_is_lost(row, listed):
    orders = changes("orders", ORDERS, keys="id", apply_as_deletes="is_deleted", watermark=("t", 0)).select(
        "id", "currency", "t"
    )
    names = changes("names", "currency STRING, name STRING", keys="currency")
    found = []
    for on_expire in ("forget", "retract"):
        ttl = StateTtl(5, by="event", on_expire=on_expire)
        with Pipeline(orders.join(names, on="currency", state_ttl=(ttl, None))) as pipeline:
            pipeline.step({"orders": [order(1, 10)], "names": [{"currency": "EUR", "name": "euro"}]})
            pipeline.step({"orders": [order(2, 100)]})
            with pytest.warns(UserWarning, match="changes came") if on_expire == "forget" else nullcontext():
                pipeline.step({"orders": [row]})
            found.append((letters(pipeline), [line["id"] for line in pipeline.view().to_pylist()]))

    assert found == [(listed, [1, 2]), ([], [2])]
