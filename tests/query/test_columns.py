"""Columns as users of PySpark write them: `df["x"]`, texts, names, functions, and schemas as text."""

from __future__ import annotations

import inspect
from typing import Any

import pyarrow as pa
import pytest

from zset_join.core.errors import OptionError, PlanError, SqlError
from zset_join.expressions import Call, col, functions, left, right
from zset_join.expressions.operations import FUNCTIONS
from zset_join.expressions.tree import walk
from zset_join.pipeline import Pipeline, View, appends, changes, records, versioned
from zset_join.pipeline import functions as F  # noqa: N812 - PySpark's own habit

ORDERS = changes("orders", "id BIGINT, customer STRING, total INT", keys="id")
CUSTOMERS = changes("customers", "customer STRING, city STRING, credit INT", keys="customer")


def answer(view: View, **rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a view over rows that are fed at once."""
    pipeline = Pipeline(view)
    pipeline.step(rows)
    found: list[dict[str, Any]] = pipeline.view().to_pylist()
    return found


FED = [{"id": 1, "customer": "Ada", "total": 7}, {"id": 2, "customer": "Bob", "total": 3}]


@pytest.mark.parametrize(
    "view",
    [
        ORDERS.filter("total > 5"),
        ORDERS.where("orders.total > 5 AND upper(customer) = 'ADA'"),
        ORDERS.filter(ORDERS["total"] > 5),
        ORDERS.filter(ORDERS.total > 5),
        ORDERS.filter(F.expr("total - 5") > 0),
        ORDERS[ORDERS["total"] > 5],
        ORDERS.where("total IS NOT NULL").filter(ORDERS["total"] > 5),
        ORDERS.filter(F.when(F.col("total") > 5, True).otherwise(False)),
        ORDERS.filter(F.coalesce(F.when(F.col("total") > 5, F.lit(True)), F.lit(False))),
    ],
)
def test_a_condition_may_be_a_text_or_name_a_column_of_the_view(view: View) -> None:
    assert answer(view, orders=FED) == FED[:1]


def test_columns_are_computed_and_named_as_in_pyspark() -> None:
    view = ORDERS.select(
        "id",
        ORDERS["total"],
        (F.col("total") + 1).alias("more"),
        F.col("total") * 2,
        F.expr("total % 2 AS odd"),
        F.expr("abs(total)"),
    )

    assert view.columns == ["id", "total", "more", "total * 2", "odd", "abs(total)"]
    assert answer(view, orders=FED[:1]) == [{"id": 1, "total": 7, "more": 8, "total * 2": 14, "odd": 1, "abs(total)": 7}]


def test_texts_select_rename_and_leave_out() -> None:
    view = ORDERS.selectExpr("*", "total * 2 AS twice").withColumnsRenamed({"id": "number"}).drop(F.col("total"), "customer")

    assert answer(view.withColumn("half", F.expr("twice DIV 2")), orders=FED[:1]) == [{"number": 1, "twice": 14, "half": 7}]
    assert ORDERS[["id", "total"]].columns == ["id", "total"]


def test_groups_take_texts_and_columns_of_the_view() -> None:
    view = ORDERS.groupBy((ORDERS["total"] > 5).alias("large")).agg(
        F.sum(F.expr("total + 1")).alias("s"),
        F.countDistinct("customer"),
        F.count_if("total > 5"),
        F.count().filter("id = 2").alias("c"),
    )

    assert answer(view, orders=FED) == [
        {"large": True, "s": 8, "count(DISTINCT customer)": 1, "count_if(total > 5)": 1, "c": 0},
        {"large": False, "s": 4, "count(DISTINCT customer)": 1, "count_if(total > 5)": 0, "c": 1},
    ]
    assert ORDERS.agg({"total": "max"}).columns == ["max(total)"]


BOTH = {
    "orders": FED,
    "customers": [{"customer": "Ada", "city": "Ulm", "credit": 5}, {"customer": "Bob", "city": "Bonn", "credit": 5}],
}


@pytest.mark.parametrize(
    "joined",
    [
        ORDERS.join(CUSTOMERS, (ORDERS["customer"] == CUSTOMERS["customer"]) & (ORDERS["total"] > CUSTOMERS["credit"])),
        ORDERS.join(CUSTOMERS, [ORDERS["customer"] == CUSTOMERS["customer"], ORDERS["total"] > CUSTOMERS["credit"]]),
        ORDERS.where("id > 0").join(CUSTOMERS, "customer", condition="orders.total > customers.credit"),
        ORDERS.join(CUSTOMERS, "customer", condition=F.expr("total > credit")),
        ORDERS.join(CUSTOMERS.alias("c"), [(F.upper("customer"), F.expr("upper(customer)"))], condition="total > c.credit"),
        ORDERS.join(CUSTOMERS, "customer", condition=left("total") > right("credit")),
    ],
)
def test_a_join_resolves_whose_column_is_meant(joined: View) -> None:
    found = answer(joined.select(ORDERS["id"], CUSTOMERS["city"]), **BOTH)

    assert found == [{"id": 1, "city": "Ulm"}]


@pytest.mark.parametrize(
    ("joined", "shown"),
    [
        (ORDERS.join(CUSTOMERS, ORDERS["customer"] == CUSTOMERS["customer"], "left"), ["Bob", None]),
        (ORDERS.join(CUSTOMERS, ORDERS["customer"] == CUSTOMERS["customer"], "full"), ["Bob", None]),
        (ORDERS.join(CUSTOMERS, [(F.lit(1), F.lit(1))], condition="orders.customer > customers.customer"), ["Bob", "Ada"]),
    ],
)
def test_a_name_that_both_sides_have_means_the_column_of_its_view(joined: View, shown: list[Any]) -> None:
    view = joined.select(ORDERS["customer"].alias("ours"), CUSTOMERS["customer"].alias("theirs")).where("ours = 'Bob'")

    fed = {"orders": FED, "customers": BOTH["customers"][:1]}
    assert [list(row.values()) for row in answer(view, **fed)] == [shown]


@pytest.mark.parametrize(
    "use",
    [
        lambda: ORDERS.filter(CUSTOMERS["credit"] > 1),
        lambda: ORDERS.withColumn("total", F.lit(1)).filter(ORDERS["total"] > 1),
        lambda: ORDERS.groupBy("customer").agg(F.sum("total").alias("total")).filter(ORDERS["total"] > 1),
        lambda: ORDERS.join(ORDERS, ORDERS["id"] == ORDERS["total"]),
        lambda: ORDERS.join(CUSTOMERS, "customer", "full").select(CUSTOMERS["customer"]),
        lambda: ORDERS.join(CUSTOMERS, "customer", "left").select(CUSTOMERS["customer"]),
        lambda: ORDERS.join(CUSTOMERS, "customer", "semi").select(CUSTOMERS["credit"]),
    ],
)
def test_a_column_that_is_no_longer_there_as_it_was_is_refused(use: Any) -> None:
    with pytest.raises(PlanError, match="is not a column of") as refused:
        use()

    assert refused.value.code == "UNKNOWN_COLUMN"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("total >", "SQL_SYNTAX"),
        ("total > 1; total > 2", "SQL_SYNTAX"),
        ("total > 1 LIMIT 2", "SQL_SYNTAX"),
        ("total > 1, total > 2", "SQL_SYNTAX"),
        ("missing > 1", "UNKNOWN_COLUMN"),
        ("customers.total > 1", "UNKNOWN_TABLE"),
        ("rand() > 0.5", "NON_DETERMINISTIC"),
        ("sum(total) > 1", "NOT_OFFERED"),
        ("split(customer, 'b', 2)[0] = 'a'", "NOT_OFFERED"),
    ],
)
def test_a_text_that_cannot_be_bound_is_refused_at_its_place(text: str, code: str) -> None:
    with pytest.raises(SqlError) as refused:
        ORDERS.filter(text)

    assert refused.value.code == code


def test_a_text_over_two_views_names_whose_column_it_is() -> None:
    with pytest.raises(SqlError, match=r"on both sides. .*orders.customer") as refused:
        ORDERS.join(CUSTOMERS, "customer", condition="customer = 'Ada'")

    assert refused.value.code == "AMBIGUOUS_COLUMN"


def test_a_schema_may_be_a_text_wherever_one_is_taken() -> None:
    listed = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("at", pa.timestamp("us", tz="UTC"))])

    assert appends("a", "id BIGINT NOT NULL, at TIMESTAMP").schema == listed
    assert versioned("v", "id: BIGINT, at TIMESTAMP", keys="id", version_by="at").columns == ["id", "at"]
    assert records("r", "debezium-json", "id BIGINT, v STRING", keys="id").columns == ["id", "v"]
    nested = appends("n", "struct<tags ARRAY<STRING>, s STRUCT<a: INT, b: DECIMAL(10, 2)>, m MAP<STRING, DOUBLE>>").schema
    inner = pa.struct({"a": pa.int32(), "b": pa.decimal128(10, 2)})
    assert nested.types == [pa.list_(pa.string()), inner, pa.map_(pa.string(), pa.float64())]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("id", "SQL_SYNTAX"),
        ("id INT PRIMARY KEY", "SQL_SYNTAX"),
        ("id FOO", "SQL_SYNTAX"),
        ("t TIME", "UNKNOWN_TYPE"),
        ("", "SQL_SYNTAX"),
        ("id INT,", "SQL_SYNTAX"),
        ("id INT>, b STRUCT<x INT", "SQL_SYNTAX"),
    ],
)
def test_a_text_that_is_no_schema_is_refused(text: str, code: str) -> None:
    with pytest.raises(SqlError) as refused:
        appends("a", text)

    assert refused.value.code == code


def test_deletes_may_be_described_by_a_text() -> None:
    table = changes("t", "id INT, op STRING, v INT", keys="id", apply_as_deletes="op = 'd'", except_column_list=["op"])

    assert answer(table, t=[{"id": 1, "op": "i", "v": 5}, {"id": 2, "op": "d", "v": 6}]) == [{"id": 1, "v": 5}]


def test_a_column_without_a_view_is_found_by_name() -> None:
    with pytest.raises(PlanError, match="nothing"):
        ORDERS["nothing"]
    with pytest.raises(OptionError):
        F.expr(5)  # type: ignore[arg-type]


def test_every_function_of_expressions_is_reached_by_a_function_or_a_method() -> None:
    rows = {name: inspect.signature(vars(F)[name]).parameters.values() for name in functions.__all__ if name not in SPECIAL}
    trees = [
        vars(F)[name](*(["day"] * sum(2 if one.kind is one.VAR_POSITIONAL else 1 for one in parameters)))
        for name, parameters in rows.items()
    ]
    value = col("x")
    trees += [
        value.bitwiseAND(1), value.bitwiseOR(1), value.bitwiseXOR(1), value.try_cast("int"), value.ilike("a"), value.like("a"),
        F.when(value > 1, 2).otherwise(3), F.timestamp_add("day", "x", "y"), F.timestamp_diff("day", "x", "y"), F.trim("x"), F.ltrim("x"), F.rtrim("x"),
    ]  # fmt: skip

    reached = {node.operation for tree in trees for node in walk(tree) if isinstance(node, Call)}

    assert FUNCTIONS.keys() - reached == set()


SPECIAL = frozenset({"CaseBuilder", "when", "timestamp_add", "timestamp_diff", "right"})


def test_functions_take_the_parameters_that_pyspark_gives_them() -> None:
    from pyspark.sql import functions as pyspark

    shorter = {
        "array_join", "ceil", "ceiling", "floor", "instr", "max_by", "min_by", "regexp_replace", "split", "to_date",
    }  # fmt: skip  # the last parameters of PySpark's are not supported
    own = {"CaseBuilder", "collect_list", "collect_set", "first", "last", "lit", "col", "column", "round_half_up"}
    differing = {}
    for name in sorted(set(F.__all__) - own):
        ours, theirs = (list(inspect.signature(getattr(module, name)).parameters) for module in (F, pyspark))
        if ours != (theirs[: len(ours)] if name in shorter else theirs):
            differing[name] = (ours, theirs)
    assert differing == {}


LINES = [
    {"id": 1, "v": "a", "_change_type": "insert", "_commit_version": 1},
    {"id": 1, "v": "b", "_change_type": "update_postimage", "_commit_version": 2},
]
RECORD = '{"before": null, "after": {"id": 1, "v": "b"}, "op": "c"}'


@pytest.mark.parametrize(
    ("table", "fed"),
    [
        (
            changes("t", "id INT, v STRING, _change_type STRING, _commit_version BIGINT", keys="id", format="change-data-feed"),
            LINES,
        ),
        (changes("t", "id INT, v STRING, _weight INT", format="weight"), [{"id": 1, "v": "b", "_weight": 1}]),
        (changes("t", "id INT, v STRING", keys="id", format="debezium-json"), [RECORD]),
    ],
)
def test_changes_may_be_described_by_the_name_of_a_format(table: View, fed: list[Any]) -> None:
    assert answer(table, t=fed) == [{"id": 1, "v": "b"}]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"format": "weigth"}, "FORMAT"),
        ({"format": "weight"}, "UNKNOWN_COLUMN"),
        ({"format": "weight", "row_kind_column": "v"}, "CONFLICTING_ARGUMENTS"),
        ({"format": "debezium-json"}, "MISSING_PRIMARY_KEY"),
        ({"format": "debezium-json", "keys": "id", "event_time": "id"}, "CONFLICTING_ARGUMENTS"),
    ],
)
def test_a_format_that_does_not_fit_is_refused(arguments: dict[str, Any], code: str) -> None:
    with pytest.raises(PlanError if code in {"UNKNOWN_COLUMN", "MISSING_PRIMARY_KEY"} else OptionError) as refused:
        changes("t", "id INT, v STRING", **arguments)

    assert refused.value.code == code


@pytest.mark.parametrize(
    ("words", "columns"),
    [
        (lambda groups: groups.sum("total", "id"), ["city", "sum(total)", "sum(id)"]),
        (lambda groups: groups.mean(), ["city", "avg(id)", "avg(total)"]),
        (lambda groups: groups.min("name"), ["city", "min(name)"]),
        (lambda groups: groups.max("total"), ["city", "max(total)"]),
    ],
)
def test_short_aggregates_are_named_as_pyspark_names_them(words, columns) -> None:
    rows = changes("orders", "id INT, city STRING, name STRING, total INT", keys="id")
    view = words(rows.groupBy("city"))

    assert view.columns == columns
    pipeline = Pipeline(view)
    pipeline.step({"orders": {"id": [1, 3], "city": ["Rome"] * 2, "name": ["b", "a"], "total": [5, 9]}})
    expected = {"sum(total)": 14, "sum(id)": 4, "avg(id)": 2.0, "avg(total)": 7.0, "min(name)": "a", "max(total)": 9}
    assert pipeline.view().to_pylist() == [{"city": "Rome"} | {name: expected[name] for name in columns[1:]}]


def test_bytes_as_the_whole_of_a_text_are_bytes() -> None:
    rows = appends("rows", {"id": pa.int64()}).select(F.expr("X'00FF'").alias("b"))

    assert Pipeline(rows).step({"rows": [{"id": 1}]}).to_pylist() == [((b"\x00\xff",), 1)]
