"""Stages of one input and what all stages are held to: how they are written and read, their tables, budgets and time."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pyarrow as pa
import pytest

from tests.stages.every_stage import EVENTS, QUOTES, ROWS, SCHEMA, STAGES, VERSIONS, registered
from zset_join import AggregateCall, Relation, Tick, ZSet
from zset_join.core.errors import OptionError, PlanError, StateError
from zset_join.core.options import HotBudget
from zset_join.expressions import left, right
from zset_join.shapes.timed_join import AsOfOptions, TemporalOptions
from zset_join.stages import (
    AggregateStage,
    AsOfJoinStage,
    CurrentVersionsStage,
    DeduplicateStage,
    JoinStage,
    LatestStage,
    ProcessTimeJoinStage,
    RouteStage,
    Stage,
    StateTtl,
    TableKey,
    TemporalJoinStage,
    UnchangedStage,
    expiring_stage,
    read_stage,
)
from zset_join.stages.stage import StageOptions
from zset_join.stages.written import read_relation, write_relation
from zset_join.state.rows import side_snapshot
from zset_join.state.time import key_runs
from zset_join.zset.protocol import TimedOperator

SEQUENCED = replace(ROWS, sequence_by=("at",))
DIFFERENT = left("id") < right("id")
WRITTEN: dict[str, Stage] = {
    **{kind: stage for kind, stage in STAGES.items() if kind != "lookup_join"},  # a function is not written down
    "filtered groups": AggregateStage(
        source=EVENTS, group_by=("k",), calls=(AggregateCall("sum", "id", name="s", where=left("id") > 3),), reduces=False
    ),
    "as-of join with all options": AsOfJoinStage(
        left=EVENTS,
        right=QUOTES,
        options=AsOfOptions(left_time="at", right_time="at", op="<", how="left", tolerance=5, residual=DIFFERENT),
    ),
    "current versions without the key": replace(STAGES["current_versions"], hidden=("id",)),
    "join with all options": JoinStage(
        left=SEQUENCED, right=VERSIONS, how="full", null_safe=(True,), residual=DIFFERENT, hidden=(("at",), ())
    ),
    "latest rows without the sequence": LatestStage(source=SEQUENCED, hidden=("at",)),
    "rows that end by their time": expiring_stage(
        JoinStage(left=replace(EVENTS, mode="changelog"), right=replace(QUOTES, mode="changelog")),
        (EVENTS, QUOTES),
        (StateTtl("1 day", by="event", refreshed_by="read"), None),
    ),
    "temporal join with all options": TemporalJoinStage(
        left=EVENTS,
        right=VERSIONS,
        options=TemporalOptions(
            how="left", emit="eager", late="drop", keep_probe_for=9, residual=DIFFERENT, output_names=tuple("abcdef")
        ),
        is_change_time=True,
    ),
    "temporal join once": TemporalJoinStage(left=EVENTS, right=VERSIONS, options=TemporalOptions(emit="once")),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_stage_comes_back_from_json_travels_and_names_the_tables_of_its_operator(name: str) -> None:
    stage = WRITTEN[name]

    again = read_stage(json.loads(json.dumps(stage.to_json())))

    assert again.to_json() == stage.to_json()
    assert pickle.loads(pickle.dumps(stage)).output == stage.output == again.output
    operator = again.build(StageOptions(), None)
    assert set(operator.snapshot()) == set(stage.state_tables)
    operator.close()


KEYED = Relation(
    name="orders", schema=pa.schema({"id": pa.int64(), "k": pa.int64()}), join_key=("k",), primary_key=("id",), mode="upsert"
)


def test_a_kind_that_is_not_known_is_refused():
    with pytest.raises(PlanError, match="teleport") as caught:
        read_stage({"kind": "teleport"})

    assert caught.value.code == "UNKNOWN_STAGE_KIND"


def test_tables_of_several_snapshots_become_one_whose_counts_are_their_sums():
    table = pa.table({"id": [1]})
    before = [{b"zset_join.absorbed_epoch": b"3", b"counts": b"[1, 2]", b"late": b"4"}, {b"counts": b"[10, 20]", b"late": b"5"}]

    made = RouteStage(source=KEYED).regrouped(table, epoch=7, metadata=before)

    assert made.schema.metadata == {b"zset_join.absorbed_epoch": b"7", b"counts": b"[11, 22]", b"late": b"9"}


def test_a_table_without_counts_has_only_its_epoch():
    made = RouteStage(source=KEYED).regrouped(pa.table({"id": [1]}), epoch=7, metadata=[])

    assert made.schema.metadata == {b"zset_join.absorbed_epoch": b"7"}


@pytest.mark.parametrize("kind", sorted(STAGES))
def test_a_stage_waits_for_time_where_its_operator_does(kind: str) -> None:
    operator = STAGES[kind].build(StageOptions(), None)

    assert STAGES[kind].waits_for_time == isinstance(operator, TimedOperator)
    operator.close()


def test_rows_wait_for_a_processing_time_where_they_end_or_become_current_by_it() -> None:
    assert {kind for kind, stage in STAGES.items() if stage.waits_for_clock} == {"current_versions", "state_ttl"}


# ---------------------------------------------------------------- budgets

BUDGETS = {"joins": "hot_budget", "routes": "hot_budget", "groups": "table_budget"}
STATEFUL = {kind for kind in registered() if set(STAGES[kind].state_tables) != {"stateless"}}
COLD = {kind for kind in STATEFUL if STAGES[kind].cold_state is not None}
ALL_HYBRID = StageOptions(hot_budget=HotBudget(max_hot_keys=10), table_budget=HotBudget(max_hot_keys=10))


@pytest.mark.parametrize("kind", sorted(STATEFUL - COLD))
def test_a_stage_without_a_cold_store_refuses_a_budget(kind):
    with pytest.raises(OptionError, match=r"HYBRID_NOT_OFFERED.*default_hash_(table|join)"):
        STAGES[kind].build(ALL_HYBRID, None)


@pytest.mark.parametrize("kind", sorted(COLD))
def test_a_stage_with_a_cold_store_takes_its_budget(kind):
    budget = {BUDGETS[str(STAGES[kind].cold_state)]: HotBudget(max_hot_keys=10)}

    STAGES[kind].build(StageOptions(**budget), None).close()


# ---------------------------------------------------------------- relations


def test_a_relation_comes_back_from_json_with_its_types_keys_and_time():
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("at", pa.timestamp("us", tz="UTC")),
            ("price", pa.decimal128(12, 3)),
            ("tags", pa.list_(pa.string())),
        ]
    )
    relation = Relation(
        name="prices",
        schema=schema,
        join_key=("price",),
        primary_key=("id",),
        sequence_by=("at",),
        mode="upsert",
        event_time="at",
        watermark_delay=5,
    )

    written = json.loads(json.dumps(write_relation(relation)))

    assert read_relation(written) == relation


# ---------------------------------------------------------------- GROUP BY and DISTINCT

SALES = Relation(name="sales", schema=pa.schema({"shop": pa.string(), "price": pa.int64()}), mode="changelog")
SOLD = ZSet.of({"shop": ["A", "A", "B"], "price": [1, 2, 3]}, schema=SALES.schema)


def _answer(stage: AggregateStage) -> list[tuple[tuple[object, ...], int]]:
    operator = stage.build(StageOptions(), None)
    reduction = stage.inputs[0].reduce
    fed = SOLD if reduction is None else reduction.reduce(SOLD)
    return sorted(row for chunk in operator.answer(Tick(0), [fed]) for row in chunk.to_pylist())


@pytest.mark.parametrize("reduces", [True, False], ids=["reduced before", "as they are"])
@pytest.mark.parametrize("function", ["sum", "max"])
def test_rows_give_the_same_answer_whether_they_were_brought_down_or_not(function: str, reduces: bool):
    stage = AggregateStage(source=SALES, group_by=("shop",), calls=(AggregateCall(function, "price"),), reduces=reduces)

    assert _answer(stage) == [(("A", 3 if function == "sum" else 2), 1), (("B", 3), 1)]


def test_distinct_is_an_aggregate_that_computes_nothing():
    stage = AggregateStage(source=SALES, group_by=("shop",), calls=())

    assert _answer(stage) == [(("A",), 1), (("B",), 1)]


def test_the_row_of_a_global_aggregate_is_there_from_the_first_epoch_on():
    assert AggregateStage(source=SALES, group_by=(), calls=(AggregateCall("count"),)).emits_without_input
    assert not AggregateStage(source=SALES, group_by=("shop",), calls=()).emits_without_input


def test_groups_and_their_values_are_bucketed_by_group():
    stage = AggregateStage(source=SALES, group_by=("shop",), calls=(AggregateCall("max", "price"),))

    assert stage.state_tables == {"groups": TableKey(columns=("shop",)), "values_0": TableKey(columns=("shop",))}
    assert stage.output_key.columns == stage.output_key.bucketed_by == ("shop",)


# ---------------------------------------------------------------- dedup

QUOTED = Relation(
    name="rates",
    schema=pa.schema({"currency": pa.string(), "rate": pa.float64(), "at": pa.timestamp("us")}),
    event_time="at",
    watermark_delay=30_000_000,
)
LATEST = DeduplicateStage(source=QUOTED, keys=("currency",), order_by=("at",), keep="last")


def test_rows_come_in_and_leave_by_key():
    assert [one.key for one in LATEST.inputs] == [("currency",)]
    assert LATEST.output_key.bucketed_by == ("currency",)
    assert LATEST.state_tables == {"rows": TableKey(columns=("currency",))}


def test_what_it_answers_with_is_keyed_and_versioned():
    assert LATEST.output.primary_key == ("currency",)
    assert LATEST.output.event_time == "at"


def test_it_shows_what_it_keeps():
    assert LATEST.explain(4) == [
        "Deduplicate by currency: the last row in order of at",
        "  remembers: the rows shown; in 4 buckets by currency; nothing is freed by time",
        "  as the right side of a temporal join: a versioned relation",
    ]


# ---------------------------------------------------------------- versions that hold now

RATES = Relation(
    name="rates",
    schema=pa.schema({"currency": pa.string(), "rate": pa.float64(), "at": pa.timestamp("us"), "lsn": pa.int64()}),
    primary_key=("currency",),
    sequence_by=("lsn",),
    mode="upsert",
    event_time="at",
)
CURRENT = CurrentVersionsStage(source=RATES, key=("currency",), hidden=("lsn",))


def test_versions_come_in_and_leave_by_key_without_what_is_hidden() -> None:
    assert [one.key for one in CURRENT.inputs] == [("currency",)]
    assert CURRENT.output_key.bucketed_by == ("currency",)
    assert CURRENT.output.schema.names == ["currency", "rate", "at"]


@pytest.mark.parametrize(("kind", "tables"), [(pa.timestamp("us"), {"rows", "held"}), (pa.int64(), {"rows"})])
def test_the_tables_of_its_operator_are_those_it_names(kind: pa.DataType, tables: set[str]) -> None:
    stage = replace(CURRENT, source=replace(RATES, schema=RATES.schema.set(2, pa.field("at", kind))))

    assert set(stage.build(StageOptions(), None).snapshot()) == set(stage.state_tables) == tables
    assert stage.state_tables["rows"] == TableKey(columns=("currency",))


def test_it_shows_which_versions_it_keeps() -> None:
    title, remembered = CURRENT.explain(4)
    assert title == 'Current versions of "rates" by currency: the newest by at at or before the processing time'
    assert "the current version, per key, and versions of the future until" in remembered
    assert remembered.endswith("in 4 buckets by currency")


# ---------------------------------------------------------------- routes

ORDERS = Relation(
    name="orders",
    schema=pa.schema({"id": pa.int64(), "customer": pa.int32(), "at": pa.int64()}),
    join_key=("customer",),
    primary_key=("id",),
    sequence_by=("at",),
    mode="upsert",
)


def test_rows_come_in_by_primary_key_and_leave_in_order():
    stage = RouteStage(source=ORDERS)

    assert [one.key for one in stage.inputs] == [("id",)]
    assert stage.output.sequence_by == ()
    assert stage.state_tables == {"route": TableKey(columns=("id",))}


# ---------------------------------------------------------------- snapshots

CHANGING = replace(EVENTS, mode="changelog")
GROUPS = AggregateStage(source=CHANGING, group_by=("k",), calls=(AggregateCall("sum", "id"), AggregateCall("min", "at")))
HELD_ONCE: dict[str, tuple[Stage, set[str]]] = {
    "groups": (GROUPS, {"groups", "values_1"}),
    "the group of all rows": (replace(GROUPS, group_by=()), {"groups", "values_1"}),
    "distinct rows": (AggregateStage(source=CHANGING, group_by=("id", "k", "at"), calls=(), reduces=False), {"groups"}),
    "a join": (JoinStage(left=ROWS, right=CHANGING), {"left", "right"}),
    "an as-of join": (STAGES["as_of_join"], {"left", "right"}),
    "versions": (STAGES["current_versions"], {"rows", "held"}),
    "versions that are retracted": (
        CurrentVersionsStage(source=replace(VERSIONS, mode="changelog"), key=("k",)),
        {"rows", "held", "held_net"},
    ),
    "first rows": (DeduplicateStage(source=CHANGING, keys=("k",), order_by=("at",)), {"rows"}),
    "last rows of what only grows": (STAGES["deduplicate"], {"rows"}),
    "latest rows": (STAGES["latest"], {"latest"}),
    "a lookup of the moment": (
        ProcessTimeJoinStage(left=CHANGING, right=VERSIONS, how="left", residual=DIFFERENT),
        {"left", "right", "memo"},
    ),
    "a route": (STAGES["route"], {"route"}),
    "left rows that wait": (STAGES["temporal_join"], {"left", "right"}),
    "left rows that are corrected": (
        TemporalJoinStage(left=EVENTS, right=VERSIONS, options=TemporalOptions(emit="eager")),
        {"left", "right"},
    ),
    "shared versions": (STAGES["shared_table"], {"left", "left_1", "right"}),
    "rows with a time to live": (
        expiring_stage(JoinStage(left=CHANGING, right=ROWS), (CHANGING, ROWS), (StateTtl("1 day"), StateTtl("1 day"))),
        {"left", "right", "ttl_0", "ttl_1"},
    ),
    "groups with a time to live": (
        expiring_stage(replace(GROUPS, source=CHANGING), (CHANGING,), (StateTtl("1 day"),)),
        {"groups", "values_1", "ttl_0", "ttl_0_keys"},
    ),
}


def _snapshot_of(stage: Stage, options: StageOptions) -> dict[str, pa.Table]:
    operator = stage.build(options, None)
    rows = {"id": [1, 2, 3], "k": [1, 2, 3], "at": [5, 9, 12]}
    operator.absorb(Tick(0, processing_time_us=7), [ZSet.of(rows, schema=SCHEMA) for _ in operator.inputs])
    return dict(operator.snapshot())


def _refused(stage: Stage, options: StageOptions, tables: dict[str, pa.Table], again: int) -> set[str]:
    """Return the tables of which one row twice is refused, in a snapshot with every row once it is none."""
    codes = {}
    for name, table in tables.items():
        twice = pa.concat_tables([table, table.slice(again % table.num_rows, 1)]) if table.num_rows else table
        try:
            stage.build(options, None).restore({**tables, name: twice})
        except StateError as error:
            codes[name] = error.code
    stage.build(options, None).restore(tables)
    return {name for name, code in codes.items() if code == "SNAPSHOT_CONTRADICTION"}


@pytest.mark.parametrize(("stage", "tables"), HELD_ONCE.values(), ids=HELD_ONCE)
def test_what_a_snapshot_holds_twice_is_refused(stage: Stage, tables: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (side_snapshot, key_runs):
        monkeypatch.setattr(module, "_SNAPSHOT_ROWS", 2)

    snapshot = _snapshot_of(stage, StageOptions())

    assert [_refused(stage, StageOptions(), snapshot, again) for again in (0, -1)] == [tables, tables]


@pytest.mark.parametrize("part", [2, 100])
def test_groups_that_go_to_disk_are_held_once(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_snapshot, "_SNAPSHOT_ROWS", part)
    options = StageOptions(table_budget=HotBudget(max_hot_keys=1))

    snapshot = _snapshot_of(GROUPS, options)

    assert _refused(GROUPS, options, snapshot, 0) >= {"groups"}
    assert _refused(GROUPS, options, snapshot, 1) >= {"groups"}


# ---------------------------------------------------------------- latest rows

SOURCE = Relation(
    name="prices",
    schema=pa.schema({"sku": pa.string(), "price": pa.int64(), "v": pa.int64()}),
    primary_key=("sku",),
    sequence_by=("v",),
    mode="upsert",
)
LATEST_ROWS = LatestStage(source=SOURCE, hidden=("v",))


def test_its_answer_is_a_changelog_with_the_primary_key_and_without_hidden_columns():
    assert LATEST_ROWS.output.schema.names == ["sku", "price"]
    assert (LATEST_ROWS.output.mode, LATEST_ROWS.output.primary_key) == ("changelog", ("sku",))
    assert LATEST_ROWS.output_key.bucketed_by == LATEST_ROWS.inputs[0].key == ("sku",)


# ---------------------------------------------------------------- rows that are passed on

CLICKS = Relation(
    name="clicks", schema=pa.schema({"page": pa.string(), "tags": pa.list_(pa.string()), "at": pa.int64()}), mode="changelog"
)


def test_rows_are_spread_by_all_they_hold_that_can_be_hashed() -> None:
    assert [one.key for one in UnchangedStage(source=CLICKS).inputs] == [("page", "at")]
