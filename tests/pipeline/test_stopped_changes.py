"""A directory is changed to another query by the command line, and its outputs get everything at the next start."""

from __future__ import annotations

import datetime
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from tests.pipeline.test_durable_changes import BY_CITY, COUNTED, JOINED, LARGE, MORE, ORDERS, PEOPLE, ROWS, held, stored
from zset_join.checkpoint.reading import query_plan
from zset_join.cli import main
from zset_join.core.errors import PlanError, StateError
from zset_join.evolution.refusals import of_taken_rows
from zset_join.expressions import col
from zset_join.lookup import ArrowSource, HttpSource, Secret
from zset_join.pipeline import Pipeline, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.runners.local.checkpoint_diff import diff_of_checkpoint
from zset_join.runners.local.outputs import PipelineOutputs
from zset_join.runners.local.stopped import evolve_directory, undo_of_directory
from zset_join.sinks.duckdb_view import DuckDBViewSink
from zset_join.sql.commands import views_of_file

CHANGED = changes("orders", {"id": pa.int64(), "who": pa.string(), "amount": pa.int64(), "day": pa.date32()}, keys="id")
SELECT = """
SELECT city, sum(total) AS t FROM (SELECT * FROM orders WHERE total > 2) AS o JOIN people USING (who) GROUP BY city
"""


def opened(tmp_path: Path, view: Any, name: str = "v") -> Pipeline[Any]:
    return Pipeline(view, tmp_path / "dir", outputs=[DuckDBViewSink(tmp_path / "out.duckdb", name)])


def test_a_select_of_a_file_is_the_new_query(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "new.sql").write_text(SELECT)
    with opened(tmp_path, BY_CITY) as pipeline:
        pipeline.step(ROWS)

    differs = main(["diff", str(tmp_path / "dir"), str(tmp_path / "new.sql")])
    changed = main(["evolve", str(tmp_path / "dir"), str(tmp_path / "new.sql")])
    again = main(["diff", str(tmp_path / "dir"), str(tmp_path / "new.sql")])
    printed = capsys.readouterr().out

    assert (differs, changed, again) == (1, 0, 0)
    assert "adds 0 rows, removes 0, changes 2 of 2" in printed
    assert "changed in epoch 1" in printed


def test_materialized_views_of_a_file_are_views_by_name(tmp_path: Path) -> None:
    statements = f"CREATE MATERIALIZED VIEW a AS {SELECT}; CREATE MATERIALIZED VIEW o AS SELECT id, total FROM orders"
    (tmp_path / "new.sql").write_text(statements)
    with Pipeline({"a": BY_CITY, "all": ORDERS}, tmp_path / "dir") as pipeline:
        pipeline.step(ROWS)

    assert main(["evolve", str(tmp_path / "dir"), str(tmp_path / "new.sql")]) == 0

    views = views_of_file(str(tmp_path / "new.sql"), query_plan(str(tmp_path / "dir")), dialect="spark")
    assert [(one.name, one.status) for one in diff_of_checkpoint(tmp_path / "dir", views).views.values()] == [
        ("a", "unchanged"),
        ("o", "unchanged"),
    ]


def test_a_program_names_the_new_query_and_another_owner_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["evolve", str(tmp_path / "dir"), "tests.pipeline.test_durable_changes:LARGE"]
    with opened(tmp_path, BY_CITY) as pipeline:
        pipeline.step(ROWS)
        refused = main(command)
        unchanged = pipeline.step(MORE)
    allowed = main(command)

    assert (refused, allowed) == (1, 0)
    assert len(unchanged)
    assert "in use" in capsys.readouterr().err
    with opened(tmp_path, LARGE) as again:
        assert stored(tmp_path / "out.duckdb", "v") == held(again) == [("Oslo", 14), ("Rome", 8)]


def test_outputs_that_lacked_an_epoch_get_it_before_the_changes(tmp_path: Path) -> None:
    with opened(tmp_path, BY_CITY) as pipeline:
        pipeline.step(ROWS)
        with (
            mock.patch.object(PipelineOutputs, "settle", side_effect=[None, OSError("the disk of the output")]),
            pytest.raises(OSError),
        ):
            pipeline.step(MORE)
    changed = evolve_directory(tmp_path / "dir", LARGE).taken
    with opened(tmp_path, LARGE) as again:
        reached = stored(tmp_path / "out.duckdb", "v")
        again.step({"people": [{"who": "b", "city": "Oslo"}]})
        last = held(again)

    assert changed == 2
    assert reached == [("Oslo", 14), ("Rome", 8)]
    assert stored(tmp_path / "out.duckdb", "v") == last == [("Oslo", 22)]


def test_a_view_that_came_by_command_begins_in_its_new_output_whatever_came_behind(tmp_path: Path) -> None:
    def sinks(*names: str) -> dict[str, Any]:
        return {name: DuckDBViewSink(tmp_path / "out.duckdb", name) for name in names}

    with Pipeline({"a": BY_CITY}, tmp_path / "dir", outputs=sinks("a")) as pipeline:
        pipeline.step(ROWS)
    evolve_directory(tmp_path / "dir", {"a": LARGE, "c": COUNTED})
    with Pipeline({"a": LARGE, "c": COUNTED}, tmp_path / "dir", outputs=sinks("a", "c")) as again:
        again.step(MORE)

        assert stored(tmp_path / "out.duckdb", "c") == held(again, "c") == [("Oslo", 16, 3), ("Rome", 10, 4)]
        assert stored(tmp_path / "out.duckdb", "a") == held(again, "a")


def test_between_two_changes_there_is_a_start_that_gives_outputs_the_first(tmp_path: Path) -> None:
    with opened(tmp_path, BY_CITY) as pipeline:
        pipeline.step(ROWS)
    evolve_directory(tmp_path / "dir", LARGE)
    with mock.patch.object(DuckDBViewSink, "write", side_effect=OSError("the disk")), pytest.raises(OSError):
        opened(tmp_path, LARGE)
    for again in (partial(evolve_directory, view=BY_CITY), undo_of_directory):
        with pytest.raises(StateError, match="EVOLVE_UNSEEN"):
            again(tmp_path / "dir")
    with opened(tmp_path, LARGE):
        pass
    evolve_directory(tmp_path / "dir", COUNTED.select("city", "n"))
    new = DuckDBViewSink(tmp_path / "new.duckdb", "v")
    with Pipeline(COUNTED.select("city", "n"), tmp_path / "dir", outputs=[new]) as pipeline:
        assert stored(tmp_path / "new.duckdb", "v") == held(pipeline)


def test_a_directory_without_an_epoch_is_changed_at_once(tmp_path: Path) -> None:
    with opened(tmp_path, BY_CITY):
        pass
    assert evolve_directory(tmp_path / "dir", LARGE).taken is None
    with opened(tmp_path, LARGE) as again:
        assert again.epoch == 0


def test_undo_is_the_query_before_and_twice_is_the_one_behind(tmp_path: Path) -> None:
    command = ["undo", str(tmp_path / "dir")]
    with opened(tmp_path, BY_CITY) as pipeline:
        pipeline.step(ROWS)
    never = main(command)
    evolve_directory(tmp_path / "dir", LARGE)
    with opened(tmp_path, LARGE):
        once = main(command)
    once += main(command)
    with opened(tmp_path, BY_CITY) as again:
        back = held(again), stored(tmp_path / "out.duckdb", "v")
    twice = main(command)
    with opened(tmp_path, LARGE) as again:
        forth = held(again)

    assert (never, once, twice) == (1, 1, 0)  # once while it runs
    assert back == ([("Oslo", 6), ("Rome", 9)], [("Oslo", 6), ("Rome", 9)])
    assert forth == stored(tmp_path / "out.duckdb", "v") == [("Oslo", 4), ("Rome", 8)]


def test_a_new_output_behind_a_command_begins_with_all_rows_and_undo_has_the_end_that_it_gave(tmp_path: Path) -> None:
    command = ["evolve", str(tmp_path / "dir"), "tests.pipeline.test_durable_changes:LARGE"]
    with Pipeline(BY_CITY, tmp_path / "dir") as pipeline:
        pipeline.step(ROWS)

    assert main([*command, "--new-table", "nobody"]) == 1
    assert main([*command, "--new-table", "--undo-epochs", "0"]) == 0

    with opened(tmp_path, LARGE) as again:
        assert stored(tmp_path / "out.duckdb", "v") == held(again)
        again.step(MORE)
    assert main(["undo", str(tmp_path / "dir")]) == 1


def test_columns_of_a_source_are_renamed_and_filled_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = {"id": pa.int64(), "who": pa.string(), "total": pa.int64()}
    with Pipeline(changes("orders", columns, keys="id"), tmp_path / "dir") as pipeline:
        pipeline.step({"orders": [{"id": 1, "who": "a", "total": 2}]})
    words = ["--rename", "orders.total=amount", "--default", "orders.day=2024-02-29"]
    program = "tests.pipeline.test_stopped_changes:CHANGED"

    assert main(["diff", str(tmp_path / "dir"), program]) == 1
    assert main(["evolve", str(tmp_path / "dir"), program, *words[:1], "orders"]) == 1
    assert main(["evolve", str(tmp_path / "dir"), program, *words]) == 0
    with Pipeline(CHANGED, tmp_path / "dir") as again:
        rows = again.view().to_pylist()
    assert main(["undo", str(tmp_path / "dir")]) == 0

    assert rows == [{"id": 1, "who": "a", "amount": 2, "day": datetime.date(2024, 2, 29)}]
    with Pipeline(changes("orders", columns, keys="id"), tmp_path / "dir") as back:
        assert back.view().to_pylist() == [{"id": 1, "who": "a", "total": 2}]


@pytest.mark.parametrize("has_changed", [False, True])
def test_a_command_keeps_the_columns_that_the_last_run_kept(tmp_path: Path, has_changed: bool) -> None:
    with Pipeline(JOINED.where(col("total") > 2) if has_changed else JOINED, tmp_path, keep_state="needed") as begun:
        begun.step(ROWS)
        if has_changed:
            begun.evolve(JOINED.where(col("total") > 3))
    whole = JOINED.where(col("total") > 3) if has_changed else JOINED
    with Pipeline(whole, tmp_path) as run:
        rows = held(run)

    evolve_directory(tmp_path, whole.select("id"))

    with Pipeline(whole.select("id"), tmp_path) as narrow:
        narrow.evolve(whole)
        assert held(narrow) == rows


def test_undo_where_nothing_is_names_the_place(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=f"there is no checkpoint of a query at {tmp_path}") as refused:
        undo_of_directory(tmp_path)
    assert refused.value.code == "NO_CHECKPOINT"


def test_the_log_of_a_view_that_begins_again_stays_until_outputs_have_it_and_no_longer(tmp_path: Path) -> None:
    def logs() -> set[str]:
        return {path.name for path in (tmp_path / "dir" / "zset" / "log" / "view-0").iterdir()}

    with Pipeline(ORDERS, tmp_path / "dir", keep_inputs=True) as pipeline:
        pipeline.step({"orders": ROWS["orders"]})
        (first,) = logs()
    evolve_directory(tmp_path / "dir", ORDERS.select("id"))
    assert first in logs()

    with Pipeline(ORDERS.select("id"), tmp_path / "dir", keep_inputs=True) as pipeline:
        for _ in range(2):
            pipeline.step({})
        (third,) = logs()  # neither the first one, which no state has, nor the second, of a process that has ended
        pipeline.evolve(ORDERS.select("who"))
        for _ in range(2):
            pipeline.step({})
        assert (len(logs()), third in logs()) == (1, False)


@pytest.mark.parametrize(("command", "code"), [("diff", 2), ("evolve", 1)])
def test_a_function_with_another_value_each_time_is_refused_with_the_rows_it_would_be_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, code: int
) -> None:
    (tmp_path / "new.sql").write_text("SELECT id, rand() AS r FROM orders JOIN people USING (who)")
    with Pipeline(BY_CITY, tmp_path / "dir") as pipeline:
        never = main([command, str(tmp_path / "dir"), str(tmp_path / "new.sql")])
        without = capsys.readouterr().err
        pipeline.step(ROWS)

    refused = main([command, str(tmp_path / "dir"), str(tmp_path / "new.sql")])
    printed = capsys.readouterr().err

    assert (never, refused) == (code, code)
    assert "[NON_DETERMINISTIC] RAND() has another value" in without
    assert f"has {sum(map(len, ROWS.values()))} rows of before, which a change would compute again: RAND()" in printed


def test_a_lookup_of_a_stopped_directory_is_kept_where_its_source_is_described_alike(tmp_path: Path) -> None:
    def looked_up(column: str, source: str = "names") -> Any:
        table = pa.table({"who": ["a", "b"], "name": ["Ada", "Bob"]})
        answered = ORDERS.lookup_join(ArrowSource(name=source, table=table), on="who", columns=["name"])
        return answered.groupBy(column).agg(F.count().alias("n"))

    with Pipeline(looked_up("name"), tmp_path / "dir") as pipeline:
        pipeline.step({"orders": ROWS["orders"]})

    diff = diff_of_checkpoint(str(tmp_path / "dir"), looked_up("who"))
    assert ("lookup_join-0" in diff.kept, list(diff.rebuilt)) == (True, ["aggregate-1"])
    with pytest.raises(StateError, match="EVOLVE_BY_TIME"):
        diff_of_checkpoint(str(tmp_path / "dir"), looked_up("who", "others"))


def test_a_reopened_directory_undoes_through_the_lookups_of_its_program_and_reads_no_secret_that_only_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRM_TOKEN", "hush")
    table = pa.table({"who": ["a", "b"], "name": ["Ada", "Bob"]})
    crm = HttpSource(name="crm", schema=table.schema, url="https://crm.example/{who}", token=Secret.env("CRM_TOKEN"))

    def counted(source: Any, column: str) -> Any:
        return {"v": ORDERS.lookup_join(source, on="who", columns=["name"]).groupBy(column).agg(F.count().alias("n"))}

    for place, before, after in (
        (
            "kept",
            counted(ArrowSource(name="names", table=table), "name"),
            counted(ArrowSource(name="names", table=table), "who"),
        ),
        ("gone", counted(crm, "name"), {"v": ORDERS.groupBy("who").agg(F.count().alias("n"))}),
    ):
        with Pipeline(before, tmp_path / place, keep_inputs=True) as pipeline:
            pipeline.step({"orders": ROWS["orders"]} if place == "kept" else {})
        evolve_directory(tmp_path / place, after)
        with Pipeline(after, tmp_path / place, keep_inputs=True) as again:
            if place == "kept":
                assert "lookup_join-0" in again.undo().kept
                again.step({"orders": [{"id": 9, "who": "a", "total": 1}]})
                assert held(again, "v") == [("Ada", 4), ("Bob", 3)]
                continue
            with pytest.raises(StateError, match=r"Secret.allowed\(\['CRM_TOKEN'\]\)") as refused:
                again.undo()
            assert refused.value.code == "ENV_NOT_ALLOWED"
            with Secret.allowed(["CRM_TOKEN"]), pytest.raises(StateError, match="EVOLVE_BY_TIME"):
                again.undo()


def test_of_lookups_that_are_described_alike_each_keeps_its_own_rows_or_the_change_is_refused(tmp_path: Path) -> None:
    def looked_up(name: str, some: bool = False) -> Any:
        source = ArrowSource(name="names", table=pa.table({"who": ["a", "b"], "name": [f"{name}a", f"{name}b"]}))
        rows = ORDERS.where(col("total") > 0) if some else ORDERS
        return rows.lookup_join(source, on="who", columns=["name"])

    def kept(old: Any, new: Any, place: str) -> list[str]:
        with Pipeline(old, tmp_path / place) as pipeline:
            pipeline.step({"orders": ROWS["orders"]})
        return list(diff_of_checkpoint(str(tmp_path / place), new).kept)

    turned = looked_up("y", some=True).unionAll(looked_up("x"))
    assert len(kept(looked_up("x").unionAll(looked_up("y", some=True)), turned, "turned")) == 2
    with pytest.raises(StateError, match="EVOLVE_JOURNAL"):  # nothing shows whose rows to keep
        kept(looked_up("x").unionAll(looked_up("y")), looked_up("y"), "one")


def test_no_state_is_read_for_an_error_that_gets_no_rows() -> None:
    error = PlanError("a", code="UNKNOWN_COLUMN")

    assert of_taken_rows(error, lambda: pytest.fail("state was read")) is error


OUTER = ORDERS.join(PEOPLE, on="who", how="left").select("id", "city")
ENDING = ORDERS.join(PEOPLE, on="who", how="left", state_ttl=("1 hour", None)).select("id", "city")


def test_rows_are_answered_as_if_they_came_now_where_the_command_has_as_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, query = str(tmp_path / "dir"), f"{__name__}:ENDING"
    with Pipeline(OUTER, place) as pipeline:
        pipeline.step(ROWS)
        running = main(["diff", place, query, "--as-now"])
        preview = pipeline.diff(ENDING, as_now=True)

    refused, stopped = main(["diff", place, query]), main(["diff", place, query, "--as-now"])
    why = capsys.readouterr().err
    changed = main(["evolve", place, query, "--as-now"])

    assert (running, refused, stopped, changed) == (0, 2, 0, 0)
    assert preview.is_empty
    assert "[EVOLVE_BY_TIME]" in why
    assert "--as-now" in why
    with Pipeline(ENDING, place) as pipeline:
        assert pipeline.view().num_rows == len(ROWS["orders"])


def broken() -> None:
    raise KeyError("of the program")


def test_a_comparison_that_fails_has_another_exit_code_than_rows_that_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, taken = str(tmp_path / "dir"), tmp_path / "file"
    taken.touch()
    with Pipeline(BY_CITY, place) as pipeline:
        pipeline.step(ROWS)

    assert main(["diff", str(tmp_path / "nothing"), f"{__name__}:ENDING"]) == 2
    assert main(["diff", place, f"{__name__}:broken"]) == 2
    assert main(["diff", place, f"{__name__}:COUNTED", "--all", str(taken / "inside")]) == 2
    assert main(["diff", place, f"{__name__}:COUNTED"]) == 1
    printed = capsys.readouterr().err
    assert "KeyError: 'of the program'" in printed
    assert "NotADirectoryError" in printed
