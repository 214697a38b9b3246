"""Several views are one pipeline: what they have in common is kept once, and an epoch is of all of them or of none."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from zset_join import BadInputError, OptionError, SinkError, StateError
from zset_join.changelog.formats import RecordOptions
from zset_join.expressions import col
from zset_join.pipeline import FunctionSink, Pipeline, changes, records
from zset_join.pipeline import functions as F  # noqa: N812 - as users write it
from zset_join.plan.query_plan import QueryPlan, one_view
from zset_join.sinks.duckdb_view import DuckDBViewSink

ORDERS = {"id": pa.int64(), "customer": pa.string(), "day": pa.int64(), "total": pa.int64()}
FIRST = {
    "orders": [
        {"id": 1, "customer": "Ada", "day": 1, "total": 30},
        {"id": 2, "customer": "Bob", "day": 1, "total": 5},
    ],
    "customers": [{"customer": "Ada", "city": "Oslo"}, {"customer": "Bob", "city": "Rome"}],
}
SECOND = {"orders": [{"id": 1, "customer": "Ada", "day": 2, "total": 40}]}


def joined():
    """Return orders with their cities, written again by everyone who needs them."""
    customers = changes("customers", {"customer": pa.string(), "city": pa.string()}, keys="customer")
    return changes("orders", ORDERS, keys="id").join(customers, on="customer")


def views():
    by_city = joined().groupBy("city").agg(F.sum("total").alias("total"))
    return {
        "by_city": by_city,
        "by_day": joined().select("day", "total").groupBy("day").agg(F.sum("total").alias("total")),
        "large": by_city.where(col("total") > 10).select("city"),
    }


def rows(table):
    return sorted(map(tuple, (row.values() for row in table.to_pylist())))


def test_what_views_have_in_common_is_one_stage():
    pipeline = Pipeline(views())

    assert [node.name for node in pipeline.plan.nodes] == ["join-0", "aggregate-1", "aggregate-2"]
    assert pipeline.plan.views_of(0) == ("by_city", "by_day", "large")
    assert pipeline.plan.views_of(1) == ("by_city", "large")
    assert 'serves views "by_city", "large"' in pipeline.explanation()
    assert QueryPlan.from_json(pipeline.plan.to_json()).explain() == pipeline.plan.explain()


def test_one_view_of_a_plan_is_what_it_would_be_alone():
    written = views()

    for name in ("by_city", "large"):
        assert one_view(Pipeline(written).plan, name).explain() == Pipeline({name: written[name]}).plan.explain()


def test_each_view_is_verified_and_explained_by_its_own_stages():
    pipeline = Pipeline(views(), keep_inputs=True)
    pipeline.step(FIRST)
    pipeline.step(SECOND)

    history = pipeline.explain_row({"day": 2}, view="by_day")

    assert all(pipeline.verify(view=name).equal for name in pipeline.views)
    assert [change.row["id"] for event in history.events for change in event.changes] == [1]


def test_an_error_behind_a_join_names_its_view_and_no_view_takes_the_epoch():
    failing = joined().select("id", share=col("total") / (col("day") - 2))
    pipeline = Pipeline({**views(), "shares": failing})
    pipeline.step(FIRST)

    with pytest.raises(BadInputError, match='view "shares": ') as refused:
        pipeline.step(SECOND)

    assert refused.value.facts["views"] == ("shares",)
    assert pipeline.epoch == 1
    assert rows(pipeline.view("by_day")) == [(1, 35)]


def test_an_error_of_a_shared_stage_names_all_views_that_it_serves():
    pipeline = Pipeline(views())
    huge = {"orders": [{"id": number, "customer": "Ada", "day": 1, "total": 2**62} for number in (1, 2)]}

    with pytest.raises(BadInputError, match='views "by_city", "large": '):
        pipeline.step({**FIRST, **huge})


def test_a_directory_goes_on_with_all_views_and_gives_all_outputs_the_last_epoch(tmp_path):
    seen, failures = [], [OSError("away")]

    def write(epoch, delta):
        if failures and epoch == 1:
            raise failures.pop()
        seen.append((epoch, sorted(delta.to_pylist())))

    def opened():
        outputs = {
            "by_city": DuckDBViewSink(tmp_path / "v.duckdb", "by_city"),
            "by_day": [FunctionSink(write)],
            "large": {"duckdb": {"path": tmp_path / "v.duckdb", "table": "large"}},
        }
        return Pipeline(views(), tmp_path / "p", outputs=outputs, snapshot_after_bytes=0)

    with opened() as pipeline:
        pipeline.step(FIRST)
        with pytest.raises(OSError, match="away"):
            pipeline.step(SECOND)
    with opened() as pipeline:
        kept = [rows(pipeline.view(name)) for name in pipeline.views]
        again = pipeline.step(epoch=1)
        pipeline.step({"orders": [{"id": 2, "customer": "Bob", "day": 1, "total": 50}]})

    assert kept == [[("Oslo", 40), ("Rome", 5)], [(1, 5), (2, 40)], [("Oslo",)]]
    assert sorted(again["by_day"].to_pylist()) == [((1, 5), 1), ((1, 35), -1), ((2, 40), 1)]
    assert seen[-2:] == [(1, sorted(again["by_day"].to_pylist())), (2, [((1, 5), -1), ((1, 50), 1)])]
    with duckdb.connect(str(tmp_path / "v.duckdb"), read_only=True) as connection:
        assert connection.sql("SELECT city, total FROM by_city ORDER BY city").fetchall() == [("Oslo", 40), ("Rome", 50)]
        assert connection.sql("SELECT city FROM large ORDER BY city").fetchall() == [("Oslo",), ("Rome",)]


@pytest.mark.parametrize(
    "changed",
    [
        lambda: {name: view for name, view in views().items() if name != "large"},
        lambda: views()["by_city"],
        lambda: {"by_city": views()["by_day"], "by_day": views()["by_city"], "large": views()["large"]},
    ],
)
def test_a_directory_of_other_views_is_refused(tmp_path, changed):
    with Pipeline(views(), tmp_path) as pipeline:
        pipeline.step(FIRST)

    with pytest.raises(StateError) as refused:
        Pipeline(changed(), tmp_path)

    assert refused.value.code == "QUERY_CHANGED"


def test_the_state_of_several_views_is_saved_and_loaded(tmp_path):
    first, second = Pipeline(views()), Pipeline(views())
    first.step(FIRST)
    first.save(tmp_path / "saved")
    second.load(tmp_path / "saved")

    assert {name: sorted(answer.to_pylist()) for name, answer in second.step(SECOND).items()} == {
        name: sorted(answer.to_pylist()) for name, answer in first.step(SECOND).items()
    }
    assert [rows(second.view(name)) for name in second.views] == [rows(first.view(name)) for name in first.views]


@pytest.mark.parametrize(
    "refused",
    [
        lambda: Pipeline({}),
        lambda: Pipeline({" ": joined()}),
        lambda: Pipeline(views(), outputs=[FunctionSink(print)]),
        lambda: Pipeline(views(), outputs={"by_month": FunctionSink(print)}),
        lambda: Pipeline(views()).view(),
        lambda: Pipeline(views()).contents("by_month"),
        lambda: Pipeline(views(), keep_inputs=True).verify(),
        lambda: Pipeline(views(), keep_inputs=True).explain_row({"city": "Oslo"}),
    ],
)
def test_a_view_that_is_not_there_or_not_named_is_refused(refused):
    with pytest.raises(OptionError) as error:
        refused()

    assert error.value.code == "VIEW_NAME"


def test_a_source_that_two_views_describe_otherwise_is_refused():
    other = changes("orders", ORDERS, keys="id", apply_as_deletes="total < 0")

    with pytest.raises(OptionError, match='"one" and "two" describe the source "orders" differently') as refused:
        Pipeline({"one": joined(), "two": other})

    assert refused.value.code == "SAME_NAME"


def test_records_that_two_views_describe_alike_are_one_source_and_otherwise_refused():
    def described(**options):
        given = {"schema": "id BIGINT, total BIGINT", "keys": "id", **options}
        return records("orders", "debezium-json", **given)

    pipeline = Pipeline({"sum": described().agg(F.sum("total").alias("t")), "large": described().where("total > 1")})
    answers = pipeline.step({"orders": ['{"op":"c","after":{"id":1,"total":5}}']})

    assert {name: delta.to_pylist() for name, delta in answers.items()} == {"sum": [((5,), 1)], "large": [((1, 5), 1)]}
    assert [node.stage.kind for node in pipeline.plan.nodes].count("latest") == 1
    for others in (
        {"schema": "id BIGINT, total STRING"},
        {"keys": ["id", "total"]},
        {"options": RecordOptions(decimals="base64")},
        {"dead_letters": print},
    ):
        with pytest.raises(OptionError, match="differently"):
            Pipeline({"one": described(), "two": described(**others)})


def test_an_output_that_cannot_hold_a_row_names_its_view():
    pipeline = Pipeline(views(), outputs={"by_city": DuckDBViewSink(":memory:", "v")})
    city = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"], pa.binary()).buffers())
    customers = pa.table({"customer": ["Ada"], "city": city})

    with pytest.raises(SinkError, match='view "by_city": ') as refused:
        pipeline.step({"orders": FIRST["orders"], "customers": customers})

    assert refused.value.code == "SINK_VALUE"
    assert pipeline.epoch == 0


def test_an_output_of_one_view_is_not_written_by_another(tmp_path):
    same = {"one": joined().select("id"), "two": joined().where(col("total") > 10).select("id")}

    with pytest.raises(SinkError, match='view "two": ') as refused:
        Pipeline(same, tmp_path / "p", outputs={name: DuckDBViewSink(tmp_path / "v.duckdb", "v") for name in same})

    assert refused.value.code == "SINK_QUERY_ID"
