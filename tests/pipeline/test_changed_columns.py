"""Columns of a source come, go, get wider types and other names; stages that do not read them are fed nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from zset_join.core.errors import OptionError, StateError
from zset_join.pipeline import Pipeline, View, appends, changes, records
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs

BEFORE = {"id": pa.int64(), "who": pa.string(), "total": pa.int32(), "note": pa.string()}
PEOPLE = changes("people", {"who": pa.string(), "city": pa.string()}, keys="who")
ROWS: dict[str, list[dict[str, Any]]] = {
    "orders": [{"id": at, "who": "ab"[at % 2], "total": at, "note": f"n{at}"} for at in range(6)],
    "people": [{"who": "a", "city": "Oslo"}, {"who": "b", "city": "Rome"}],
}
ADDED = {**BEFORE, "place": pa.string()}
DROPPED = {name: kind for name, kind in BEFORE.items() if name != "note"}


def orders(columns: dict[str, pa.DataType], *, is_append: bool = False) -> Any:
    return appends("orders", columns) if is_append else changes("orders", columns, keys="id")


def views(columns: dict[str, pa.DataType], *, is_append: bool = False, total: str = "total") -> dict[str, View]:
    source = orders(columns, is_append=is_append)
    joined = source.join(PEOPLE, on="who")
    return {
        "whole": source,
        "joined": joined,
        "by_city": joined.groupBy("city").agg(F.count().alias("n")),
        "totals": source.groupBy("who").agg(F.sum(total).alias("t")),
    }


def later(rows: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    return {"orders": [rows], "people": [{"who": "a", "city": "Bern"}]}


def held(pipeline: Pipeline[Any]) -> dict[str, Any]:
    return {name: sorted(map(repr, pipeline.view(name).to_pylist())) for name in pipeline.views}


@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize("is_append", [False, True])
@pytest.mark.parametrize(
    ("after", "words", "of_before", "fed"),
    [
        (ADDED, {}, {"place": None}, {"by_city", "totals"}),
        (ADDED, {"defaults": {"orders": {"place": "x"}}}, {"place": "x"}, {"by_city", "totals"}),
        (DROPPED, {}, {}, {"by_city", "totals"}),
        ({**DROPPED, "remark": pa.string()}, {"renamed": {"orders": {"note": "remark"}}}, {}, {"by_city", "totals"}),
        ({**BEFORE, "total": pa.int64()}, {}, {}, {"by_city"}),
    ],
    ids=["added", "default", "dropped", "renamed", "widened"],
)
def test_a_changed_source_answers_as_if_it_had_always_been_so(
    tmp_path: Path,
    after: dict[str, pa.DataType],
    words: Any,
    of_before: dict[str, Any],
    fed: set[str],
    is_append: bool,
    lasts: bool,
) -> None:
    where = tmp_path if lasts else None
    given = {"keep_inputs": is_append}
    old, new = views(BEFORE, is_append=is_append), views(after, is_append=is_append)
    pipeline = Pipeline(old, where, **given)
    pipeline.step(ROWS)
    pipeline.step({"orders": [{"id": 9, "who": "a", "total": 50, "note": "late"}]})

    diff = pipeline.evolve(new, **words)

    assert {diff.views[name].status for name in fed} == {"unchanged"}
    groups = [stage for stage in diff.rebuilt if stage.startswith("aggregate")]
    assert len(groups) == 2 - len(fed), diff.rebuilt
    fresh = Pipeline(new)
    renamed = words.get("renamed", {}).get("orders", {})
    rows = [*ROWS["orders"], {"id": 9, "who": "a", "total": 50, "note": "late"}]
    shown = [{renamed.get(name, name): value for name, value in row.items()} for row in rows]
    rows = [{**{name: value for name, value in row.items() if name in after}, **of_before} for row in shown]
    fresh.step({"orders": rows, "people": ROWS["people"]})
    assert held(pipeline) == held(fresh)
    if lasts:
        pipeline.close()
        pipeline = Pipeline(new, where, **given)
    one = {
        "id": 7,
        "who": "b",
        **{name: (2**20 if pa.types.is_integer(kind) else "y") for name, kind in list(after.items())[2:]},
    }
    assert {n: d.to_pylist() for n, d in pipeline.step(later(one)).items()} == {
        n: d.to_pylist() for n, d in fresh.step(later(one)).items()
    }
    assert held(pipeline) == held(fresh)
    if is_append:
        assert all(pipeline.verify(view=name).equal for name in new)
    pipeline.close()


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({**BEFORE, "total": pa.int16()}, {}),
        ({**BEFORE, "total": pa.float32()}, {}),
        ({**BEFORE, "total": pa.string()}, {}),
        (DROPPED, {"renamed": {"orders": {"note": "place"}}}),
        (ADDED, {"defaults": {"orders": {"place": 7}}}),
        (ADDED, {"defaults": {"orders": {"note": "x"}}}),
        (ADDED, {"defaults": {"people": {"place": "x"}}}),
        (pa.schema([*pa.schema(BEFORE), pa.field("place", pa.string(), nullable=False)]), {}),
    ],
    ids=["narrow", "rounded", "other", "rename_to_none", "no_text", "default_of_old", "column_of_other", "never_null"],
)
def test_rows_without_a_value_under_the_new_columns_are_refused_and_nothing_changes(columns: Any, words: Any) -> None:
    pipeline = Pipeline({"orders": orders(BEFORE), "people": PEOPLE})
    pipeline.step(ROWS)
    before = held(pipeline)

    with pytest.raises(StateError) as refused:
        pipeline.evolve({"orders": orders(columns), "people": PEOPLE}, **words)

    assert (refused.value.code, pipeline.epoch, held(pipeline)) == ("EVOLVE_COLUMN", 1, before)


@pytest.mark.parametrize("is_opened_again", [False, True])
@pytest.mark.parametrize(
    ("after", "words"),
    [
        (ADDED, {}),
        ({**DROPPED, "remark": pa.string()}, {"renamed": {"orders": {"note": "remark"}}}),
        ({**BEFORE, "total": pa.int64()}, {}),
    ],
    ids=["added", "renamed", "widened"],
)
def test_undo_brings_the_columns_of_before_back(
    tmp_path: Path, after: dict[str, pa.DataType], words: Any, is_opened_again: bool
) -> None:
    pipeline = Pipeline(views(BEFORE), tmp_path)
    pipeline.step(ROWS)
    before = held(pipeline)
    pipeline.evolve(views(after), **words)
    if is_opened_again:
        pipeline.close()
        pipeline = Pipeline(views(after), tmp_path)

    pipeline.undo()

    assert held(pipeline) == before
    pipeline.step(later({"id": 1, "who": "a", "total": 3, "note": "y"}))
    fresh = Pipeline(views(BEFORE))
    fresh.step(ROWS)
    fresh.step(later({"id": 1, "who": "a", "total": 3, "note": "y"}))
    assert held(pipeline) == held(fresh)
    pipeline.close()


@pytest.mark.parametrize(("after", "epochs"), [(DROPPED, 0), ({**BEFORE, "total": pa.int64()}, 1)], ids=["dropped", "widened"])
def test_undo_refuses_what_it_has_no_values_for(after: dict[str, pa.DataType], epochs: int) -> None:
    pipeline = Pipeline(views(BEFORE))
    pipeline.step(ROWS)
    pipeline.evolve(views(after))
    for _ in range(epochs):
        pipeline.step({"orders": [{"id": 1, "who": "a", "total": 2**40, "note": "y"}]})

    with pytest.raises(StateError, match="UNDO_COLUMNS"):
        pipeline.undo()


@pytest.mark.parametrize("words", [{"renamed": ["note"]}, {"defaults": {"orders": "shop"}}])
def test_words_that_are_no_mapping_are_refused(words: Any) -> None:
    pipeline = Pipeline(orders(BEFORE))

    with pytest.raises(OptionError, match=r"ARGUMENT.*such as (renamed|defaults)=\{'orders'"):
        pipeline.evolve(orders(ADDED), **words)


def test_a_new_column_under_the_name_of_a_renamed_one_is_not_that_one() -> None:
    """State, schema and text of the group are the same in both queries; the column that it names is another one."""
    queries = [
        orders(columns).groupBy("who").agg(F.max("note").alias("m")) for columns in (BEFORE, {**BEFORE, "remark": pa.string()})
    ]
    pipeline = Pipeline(queries[0])
    pipeline.step({"orders": ROWS["orders"][:1]})

    pipeline.evolve(queries[1], renamed={"orders": {"note": "remark"}}, defaults={"orders": {"note": "z"}})

    assert pipeline.view().to_pylist() == [{"who": "a", "m": "z"}]


def test_a_column_of_the_old_name_that_is_computed_from_another_one_is_built_again() -> None:
    def noted(columns: dict[str, pa.DataType], note: str) -> View:
        return orders(columns).select("id", "who", F.col(note).alias("n")).join(PEOPLE, on="who")

    pipeline = Pipeline(noted(BEFORE, "note"))
    pipeline.step(ROWS)
    pipeline.evolve(noted({**DROPPED, "place": pa.string()}, "place"))
    pipeline.step({"people": [{"who": "a", "city": "Bern"}, {"who": "b", "city": "Bern"}]})

    assert {(row["n"], row["city"]) for row in pipeline.view().to_pylist()} == {(None, "Bern")}


def test_names_that_are_exchanged_need_a_name_between() -> None:
    columns = {"id": pa.int64(), "x": pa.string(), "y": pa.string()}
    between = {"id": pa.int64(), "z": pa.string(), "x": pa.string()}
    pipeline = Pipeline({"whole": orders(columns)})
    pipeline.step({"orders": [{"id": 1, "x": "X", "y": "Y"}]})

    with pytest.raises(StateError, match=r"EVOLVE_COLUMN.*a name between"):
        pipeline.evolve({"whole": orders(columns)}, renamed={"orders": {"x": "y", "y": "x"}})
    pipeline.evolve({"whole": orders(between)}, renamed={"orders": {"x": "z", "y": "x"}})
    pipeline.evolve({"whole": orders(columns)}, renamed={"orders": {"z": "y"}})

    assert pipeline.view("whole").to_pylist() == [{"id": 1, "x": "Y", "y": "X"}]


def test_a_renaming_before_the_first_epoch_is_not_undone_behind_it() -> None:
    pipeline = Pipeline({"whole": orders(BEFORE)})
    pipeline.evolve({"whole": orders({**DROPPED, "remark": pa.string()})}, renamed={"orders": {"note": "remark"}})
    pipeline.step({"orders": [{"id": 1, "who": "a", "total": 1, "remark": "kept"}]})

    with pytest.raises(StateError, match="UNDO_COLUMNS"):
        pipeline.undo()
    assert pipeline.view("whole").to_pylist()[0]["remark"] == "kept"


@pytest.mark.parametrize("lasts", [False, True])
def test_a_table_of_records_gets_a_column_and_what_was_not_sent_is_found_in_a_row_from_before(
    tmp_path: Path, lasts: bool
) -> None:
    def table(columns: dict[str, pa.DataType]) -> View:
        return records("orders", "debezium-json", columns, keys="id").join(PEOPLE, on="who")

    def record(op: str, lsn: int, **row: Any) -> dict[str, str]:
        side = "before" if op == "d" else "after"
        return {"value": json.dumps({"op": op, side: row, "source": {"lsn": lsn}})}

    columns = {"id": pa.int64(), "who": pa.string(), "note": pa.string()}
    old, new = table(columns), table({**columns, "paid": pa.int32()})
    pipeline = Pipeline(old, tmp_path if lasts else None)
    first = [record("c", at, id=at, who="a", note=f"n{at}") for at in (1, 2)]
    pipeline.step({"orders": [*first, record("d", 9, id=2, who="a", note="n2")], "people": ROWS["people"]})

    diff = pipeline.evolve(new)
    if lasts:
        pipeline.close()
        pipeline = Pipeline(new, tmp_path)
    touched = record("u", 10, id=1, who="a", note="__debezium_unavailable_value", paid=5)
    pipeline.step({"orders": [record("u", 3, id=2, who="a", note="late", paid=1), touched]})

    assert diff.taken == 1
    found = [(row["id"], row["note"], row["paid"], row["city"]) for row in pipeline.view().to_pylist()]
    assert found == [(1, "n1", 5, "Oslo")]
    pipeline.close()
