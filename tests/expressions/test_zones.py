"""Expressions in the time zone of a session: their values, and what only Spark computes there."""

from __future__ import annotations

import datetime as dt
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from zset_join.core.errors import PlanError
from zset_join.expressions import Expression, lit
from zset_join.expressions.rows import compute, named, value_type
from zset_join.expressions.zones import expression_in_zone
from zset_join.sql_expressions.texts import bound_text

UTC = pa.timestamp("us", "UTC")
SCHEMA = pa.schema({"ts": UTC, "other": UTC, "local": pa.timestamp("us"), "day": pa.date32(), "text": pa.string()})
NEW_YORK = ZoneInfo("America/New_York")
HOURS = [dt.datetime(2024, 3, 9, 23, tzinfo=dt.UTC) + dt.timedelta(hours=at) for at in range(30)]
HOURS += [dt.datetime(2024, 11, 2, 22, tzinfo=dt.UTC) + dt.timedelta(hours=at) for at in range(30)]


def bound(text: str) -> Expression:
    tree = bound_text(text, {"row": ("t", SCHEMA)}).tree
    assert tree is not None
    return tree


def in_new_york(tree: Expression) -> Expression:
    return expression_in_zone(tree, {"row": SCHEMA}, "America/New_York")


def values(tree: Expression) -> list[Any]:
    columns = {"ts": pa.array(HOURS, UTC), "other": pa.array(HOURS[::-1], UTC)}
    result: list[Any] = compute(tree, columns, len(HOURS)).to_pylist()
    return result


LOCAL = {
    "hour(ts)": lambda one, _: one.hour,
    "extract(DOY FROM ts)": lambda one, _: one.timetuple().tm_yday,
    "CAST(ts AS date)": lambda one, _: one.date(),
    "CAST(ts AS string)": lambda one, _: f"{one:%Y-%m-%d %H:%M:%S}",
    "TRY_CAST(ts AS timestamp_ntz)": lambda one, _: one.replace(tzinfo=None),
    "date_format(ts, 'dd HH')": lambda one, _: f"{one:%d %H}",
    "datediff(ts, other)": lambda one, other: (one.date() - other.date()).days,
    "timestampdiff(HOUR, ts, other)": lambda one, other: round((other.replace(tzinfo=None) - one.replace(tzinfo=None)) / HOUR),
    "ts - other": lambda one, other: one.replace(tzinfo=None) - other.replace(tzinfo=None),
    "ts >= '2024-03-10'": lambda one, _: one >= dt.datetime(2024, 3, 10, tzinfo=NEW_YORK),
    "ts >= DATE '2024-11-03'": lambda one, _: one >= dt.datetime(2024, 11, 3, tzinfo=NEW_YORK),
    "ts > TIMESTAMP '2024-03-10T02:30:00Z'": lambda one, _: one > dt.datetime(2024, 3, 10, 2, 30, tzinfo=dt.UTC),
}
HOUR = dt.timedelta(hours=1)


@pytest.mark.parametrize("text", LOCAL)
def test_what_depends_on_the_zone_is_computed_of_the_local_time(text: str) -> None:
    there = [one.astimezone(NEW_YORK) for one in HOURS]
    tree = in_new_york(bound(text))

    assert values(tree) == [LOCAL[text](one, other) for one, other in zip(there, there[::-1], strict=True)]
    assert value_type(tree, SCHEMA) == value_type(bound(text), SCHEMA)


@pytest.mark.parametrize("text", ["ts < other", "coalesce(ts, other)", "unix_timestamp(ts)", "ts + INTERVAL 3 HOURS", "day"])
def test_what_does_not_depend_on_the_zone_stays_as_it_is(text: str) -> None:
    assert in_new_york(bound(text)).same_as(bound(text))


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2024-03-10 02:30:00", "2024-03-10T07:30:00+00:00"),  # there is no such time: the offset before the gap counts
        ("2024-11-03 01:30:00", "2024-11-03T05:30:00+00:00"),  # there are two: the earlier
        ("2024-11-03 01:30:00-05:00", "2024-11-03T06:30:00+00:00"),
    ],
)
@pytest.mark.parametrize("cast", [lambda text: bound(f"TIMESTAMP '{text}'"), lambda text: lit(text).cast(UTC)])
def test_a_text_that_is_a_constant_is_the_instant_that_spark_reads(text: str, instant: str, cast: Any) -> None:
    assert compute(in_new_york(cast(text)), {}, 1).to_pylist() == [dt.datetime.fromisoformat(instant)]


@pytest.mark.parametrize(
    "text",
    [
        "date_trunc('DAY', ts)",
        "CAST(text AS timestamp)",
        "TRY_CAST(text AS timestamp)",
        "CAST(local AS timestamp)",
        "ts > day",
        "ts + INTERVAL 1 DAY\n    ",
        "unix_timestamp(local)",
        "coalesce(ts, day)",
        "timestampadd(MONTH, 1, ts)",
    ],
)
def test_an_instant_of_the_local_time_of_a_row_is_for_spark_alone(text: str) -> None:
    with pytest.raises(PlanError, match="America/New_York") as refused:
        in_new_york(bound(text.strip()))

    assert refused.value.code == "SPARK_ONLY_STEP"


def test_a_zone_that_only_spark_reads_is_refused_where_it_matters() -> None:
    hour, name = bound("hour(ts)"), named("text")

    assert expression_in_zone(name, {"row": SCHEMA}, "PST") is name
    with pytest.raises(PlanError, match="PST"):
        expression_in_zone(hour, {"row": SCHEMA}, "PST")


def test_a_zone_that_the_user_names_stays() -> None:
    tokyo = named("ts").cast(pa.timestamp("us", "Asia/Tokyo")).cast("date")

    assert in_new_york(tokyo).same_as(tokyo)
