"""A column that no state has is filled from the source, which is read again; its rows must be those that were taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zset_join.cli import main
from zset_join.core.errors import OptionError, StateError
from zset_join.pipeline import Pipeline, appends, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs

ORDERS = changes("orders", {"id": pa.int64(), "who": pa.string(), "total": pa.int64(), "note": pa.string()}, keys="id")
PEOPLE = changes("people", {"who": pa.string(), "city": pa.string()}, keys="who")
JOINED = ORDERS.join(PEOPLE, on="who")
NARROW = JOINED.select("id", "city")
WIDE = JOINED.select("id", "city", "note")
ROWS: dict[str, list[dict[str, Any]]] = {
    "orders": [{"id": at, "who": "ab"[at % 2], "total": at, "note": f"n{at}"} for at in range(6)],
    "people": [{"who": "a", "city": "Oslo"}, {"who": "b", "city": "Rome"}],
}
SEEN = appends("seen", {"k": pa.string(), "n": pa.int64()})


def narrow(where: Path | None = None) -> Pipeline[Any]:
    pipeline = Pipeline(NARROW, where, keep_state="needed")
    pipeline.step(ROWS)
    return pipeline


def places(folder: Path) -> dict[str, Any]:
    table = pa.Table.from_pylist(ROWS["orders"]).append_column("beside", pa.array(range(6)))
    pq.write_table(table, folder / "orders.parquet")
    with duckdb.connect(str(folder / "shop.duckdb")) as connection:
        connection.register("given", table)
        connection.execute("CREATE TABLE orders AS SELECT * FROM given")
    return {
        "rows": ROWS["orders"],
        "function": lambda: ROWS["orders"],
        "parquet": str(folder / "orders.parquet"),
        "duckdb": f"{folder / 'shop.duckdb'}:orders",
    }


@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize("place", ["rows", "function", "parquet", "duckdb"])
def test_a_column_that_was_left_out_is_read_again(tmp_path: Path, place: str, lasts: bool) -> None:
    where = tmp_path / "dir" if lasts else None
    pipeline = narrow(where)
    with pytest.raises(StateError, match=r"EVOLVE_DROPPED.*reread"):
        pipeline.evolve(WIDE)
    given = {"orders": places(tmp_path)[place]}

    difference = pipeline.diff(WIDE, reread=given)
    pipeline.evolve(WIDE, reread=given)
    if lasts:
        pipeline.close()
        pipeline = Pipeline(WIDE, where, keep_state="needed")
    pipeline.step({"people": [{"who": "a", "city": "Bern"}]})

    fresh = Pipeline(WIDE)
    fresh.step(ROWS)
    fresh.step({"people": [{"who": "a", "city": "Bern"}]})
    assert not difference.is_empty
    assert sorted(map(repr, pipeline.view().to_pylist())) == sorted(map(repr, fresh.view().to_pylist()))
    pipeline.close()


def test_an_append_only_source_is_grouped_by_something_else() -> None:
    rows = [{"k": "x", "n": 2}, {"k": "y", "n": 2}, {"k": "x", "n": 2}]
    pipeline = Pipeline(SEEN.groupBy("k").agg(F.sum("n").alias("n")))
    pipeline.step({"seen": rows})

    pipeline.evolve(SEEN.groupBy("n").agg(F.count().alias("c")), reread={"seen": rows})
    pipeline.step({"seen": [{"k": "z", "n": 2}]})

    assert pipeline.view().to_pylist() == [{"n": 2, "c": 4}]


def test_rows_that_are_not_those_that_were_taken_are_refused_with_their_counts() -> None:
    pipeline = narrow()
    gone_on = [*ROWS["orders"][1:], {"id": 7, "who": "a", "total": 7, "note": "new"}]
    moved = [{**row, "who": "b"} for row in ROWS["orders"]]

    for rows, counts in ((gone_on, (1, 1)), (moved, (3, 3))):
        with pytest.raises(StateError) as refused:
            pipeline.evolve(WIDE, reread={"orders": rows})
        assert refused.value.code == "EVOLVE_REREAD"
        assert (refused.value.facts["more"], refused.value.facts["fewer"]) == counts
    with pytest.raises(StateError, match="EVOLVE_REREAD"):
        pipeline.evolve(WIDE, reread={"nobody": []})
    assert pipeline.epoch == 1


@pytest.mark.parametrize("how", ["whole", "narrow", "renamed"])
def test_rows_under_added_columns_are_compared_by_the_columns_that_stay(how: str) -> None:
    def view(extra: dict[str, pa.DataType], who: str) -> Any:
        source = changes("orders", {"id": pa.int64(), who: pa.string(), **extra}, keys="id")
        return source.where(f"{who} <> 'c'").select("id", who) if how == "narrow" else source

    def rows(*names: str) -> list[dict[str, Any]]:
        return [{"id": at, who: name, "place": f"p{at}"} for at, name in enumerate(names)]

    who = "whom" if how == "renamed" else "who"
    words = {"renamed": {"orders": {"who": "whom"}}} if how == "renamed" else {}
    before = {"first": view({}, "who"), "second": changes("orders", {"id": pa.int64(), "who": pa.string()}, keys="id")}
    wide = changes("orders", {"id": pa.int64(), who: pa.string(), "place": pa.string()}, keys="id")
    if how == "narrow":
        del before["second"]
    pipeline = Pipeline(before)
    pipeline.step({"orders": [{"id": 0, "who": "a"}, {"id": 1, "who": "b"}]})

    for others in (rows("a", "b", "d"), rows("a"), rows("a", "a")):
        with pytest.raises(StateError, match="EVOLVE_REREAD"):
            pipeline.evolve({"first": view({"place": pa.string()}, who), "second": wide}, reread={"orders": others}, **words)
    pipeline.evolve({"first": view({"place": pa.string()}, who), "second": wide}, reread={"orders": rows("a", "b")}, **words)

    assert {row["place"] for row in pipeline.view("second").to_pylist()} == {"p0", "p1"}


def test_inputs_that_are_kept_have_no_values_of_an_added_column() -> None:
    wide = appends("seen", {"k": pa.string(), "n": pa.int64(), "z": pa.string()})
    pipeline = Pipeline({"seen": SEEN}, keep_inputs=True)
    pipeline.step({"seen": [{"k": "a", "n": 1}]})

    with pytest.raises(StateError, match=r"EVOLVE_REREAD.*keep_inputs"):
        pipeline.evolve({"seen": wide}, reread={"seen": [{"k": "a", "n": 1, "z": "Z"}]})
    assert pipeline.verify(view="seen").equal


def test_a_dict_of_columns_may_have_more_of_them() -> None:
    pipeline = narrow()
    columns = {name: [row[name] for row in ROWS["orders"]] for name in ROWS["orders"][0]}

    pipeline.evolve(WIDE, reread={"orders": {**columns, "beside": list(range(6))}})

    assert sorted(row["note"] for row in pipeline.view().to_pylist()) == [f"n{at}" for at in range(6)]


@pytest.mark.parametrize("place", ["postgresql://me:s3cret@127.0.0.1/db", "postgresql://me:s3cret%zz@127.0.0.1:9/db:orders"])
def test_the_password_of_a_place_is_in_no_message(place: str) -> None:
    with pytest.raises(OptionError, match="REREAD") as refused:
        narrow().evolve(WIDE, reread={"orders": place})
    assert "s3cret" not in f"{refused.value} {refused.value.facts} {refused.value.__cause__}"


def test_a_place_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    pipeline = narrow()
    for place in (tmp_path / "none.parquet", f"{tmp_path / 'none.duckdb'}:orders", "postgresql://127.0.0.1:9/none:orders"):
        with pytest.raises(OptionError, match="REREAD"):
            pipeline.evolve(WIDE, reread={"orders": str(place)})


def test_the_command_line_reads_a_source_again(tmp_path: Path) -> None:
    narrow(tmp_path / "dir").close()
    command = [str(tmp_path / "dir"), "tests.pipeline.test_rereading:WIDE"]
    again = ["--reread", f"orders={places(tmp_path)['parquet']}"]

    assert main(["evolve", *command]) == 1
    assert main(["evolve", *command, "--reread", "orders"]) == 1
    assert main(["diff", *command, *again]) == 1
    assert main(["evolve", *command, *again]) == 0

    with Pipeline(WIDE, tmp_path / "dir", keep_state="needed") as pipeline:
        assert sorted(row["note"] for row in pipeline.view().to_pylist()) == [f"n{at}" for at in range(6)]


def test_a_pipeline_that_keeps_what_it_needs_does_so_after_each_change_and_opens_again(tmp_path: Path) -> None:
    with Pipeline(JOINED, tmp_path / "dir", keep_state="needed") as pipeline:
        pipeline.step(ROWS)
        pipeline.evolve(NARROW)
        assert "not kept, since nothing reads them: total, note" in pipeline.plan.explain(buckets=1)

    with Pipeline(NARROW, tmp_path / "dir", keep_state="needed") as pipeline:
        assert pipeline.view().sort_by("id").to_pylist()[:2] == [{"id": 0, "city": "Oslo"}, {"id": 1, "city": "Rome"}]


def test_the_command_line_keeps_what_is_needed_where_the_query_before_needed_all(tmp_path: Path) -> None:
    whole = JOINED.select("id", "who", "total", "note", "city")
    with Pipeline(whole, tmp_path / "dir", keep_state="needed") as pipeline:
        pipeline.step(ROWS)

    assert main(["evolve", str(tmp_path / "dir"), "tests.pipeline.test_rereading:NARROW"]) == 0

    with Pipeline(NARROW, tmp_path / "dir", keep_state="needed") as pipeline:
        assert pipeline.view().sort_by("id").to_pylist()[:2] == [{"id": 0, "city": "Oslo"}, {"id": 1, "city": "Rome"}]
