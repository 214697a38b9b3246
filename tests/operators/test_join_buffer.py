"""How many bytes an append-only join may hold, and what happens at the limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.built import built
from tests.epochs import Epochs, insert
from zset_join.core.epochs import Tick
from zset_join.core.errors import OptionError, ResourceError
from zset_join.core.options import BufferLimit, HotBudget
from zset_join.core.relation import Relation
from zset_join.operators.join import HashJoin
from zset_join.shapes.operator_options import OperatorOptions

CLICKS = Relation(name="clicks", schema=pa.schema({"page": pa.string(), "user": pa.int64()}), join_key=("page",))
VIEWS = Relation(name="views", schema=pa.schema({"page": pa.string(), "ms": pa.int64()}), join_key=("page",))
PAGES = Relation(name="pages", schema=VIEWS.schema, join_key=("page",), primary_key=("page",), mode="upsert")
ROW = 48  # the record of either relation
NOTHING_HOT = {"max_hot_bytes": 0}
LONG = "/a/path/of/more/than/twelve/bytes"


def epochs(how: str = "inner", *, limit: int | None = 4 * ROW + 1, **options: Any) -> Epochs:
    """Return a join that holds less than four rows and a byte."""
    return Epochs(built(HashJoin, CLICKS, VIEWS, how, join_max_buffered_bytes=limit, **options))


def test_the_epoch_that_reaches_the_limit_is_refused_whole() -> None:
    join = epochs(limit=4 * ROW)
    join.feed(insert(("a", 1)), insert(("a", 10)))

    with pytest.raises(ResourceError, match=r"96 . 96 bytes after epoch 1.*join_max_buffered_bytes is 192"):
        join.feed(insert(("a", 2)), insert(("b", 20)))

    assert join.feed(insert(("a", 3))) == [(("a", 3, "a", 10), 1)]


def test_the_error_names_both_sides_and_the_largest_key() -> None:
    join = epochs()
    join.feed(insert(("a", 1), ("b", 2)), insert(("a", 10)))

    with pytest.raises(ResourceError) as refused:
        join.feed(insert((LONG, 3)), insert(("b", 20), ("b", 21)))

    facts = refused.value.facts
    assert refused.value.code == "JOIN_BUFFER_FULL"
    assert (facts["left_bytes"], facts["right_bytes"]) == (3 * ROW + 48, 3 * ROW)
    assert (facts["key"], facts["key_rows"], facts["key_bytes"]) == (("b",), 3, 3 * ROW)


def test_rows_whose_key_cannot_match_are_named_by_no_key() -> None:
    join = epochs("left", limit=2 * ROW)

    with pytest.raises(ResourceError, match=r"the epoch was not applied\. Both sides") as refused:
        join.feed(insert((None, 1), (None, 2)))

    assert refused.value.facts["key"] == ()


def test_a_row_that_is_put_aside_does_not_count() -> None:
    join = HashJoin(
        CLICKS, VIEWS, options=OperatorOptions(on_bad_input="quarantine", buffer_limit=BufferLimit.of(max_bytes=2 * ROW))
    )
    fed = Epochs(join)

    fed.feed([*insert(("a", 1)), (("a", 2), -1), (("a", 3), 0)])

    held = join.buffered(Tick(1), fed.deltas())
    assert held is not None
    assert held.before == (ROW, 0)


@pytest.mark.parametrize("rows_in_memory", [0, 2, 100])
def test_rows_on_disk_count_as_those_in_memory_do_over_restarts_too(tmp_path: Path, rows_in_memory: int) -> None:
    budget = {"max_hot_keys": rows_in_memory, "directory": str(tmp_path)}
    join = epochs(limit=7 * ROW + 48, **budget)
    join.feed(insert(("a", 1), (LONG, 2), ("b", 3)), insert(("a", 10)))
    join.operator.close()  # type: ignore[attr-defined]
    opened = built(HashJoin, CLICKS, VIEWS, join_max_buffered_bytes=7 * ROW + 48, **budget)  # type: ignore[arg-type]

    held = opened.buffered(Tick(1), Epochs(opened).deltas(insert((LONG, 4))))
    assert held is not None
    assert (held.before, held.after) == ((3 * ROW + 48, ROW), (4 * ROW + 96, ROW))
    with pytest.raises(ResourceError, match=r"288 . 96 bytes after epoch 1") as refused:
        list(opened.answer(Tick(1), Epochs(opened).deltas(insert(("c", 4), ("b", 5)), insert(("b", 6)))))
    assert (refused.value.facts["key"], refused.value.facts["key_rows"]) == (("b",), 3)


def test_spilling_holds_memory_to_the_limit_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    join = epochs(limit=400, join_buffer_policy="spill")
    join.feed(insert(*((f"page {number}", number) for number in range(50))))

    counts = join.operator.statistics()  # type: ignore[attr-defined]
    assert counts["hot_bytes"] <= 400
    assert (counts["left_rows"], counts["left_cold_rows"] > 40, any(tmp_path.iterdir())) == (50, True, True)
    assert join.feed([], insert(("page 7", 70))) == [(("page 7", 7, "page 7", 70), 1)]


def test_the_default_limit_is_not_for_a_join_that_is_hybrid() -> None:
    default = BufferLimit().beside(HotBudget(max_hot_bytes=0))[0]
    explicit = BufferLimit.of(1000).beside(HotBudget(max_hot_bytes=0))[0]

    assert (default.max_bytes, explicit.max_bytes) == (0, 1000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"join_max_buffered_bytes": -1}, "join_max_buffered_bytes was given -1"),
        ({"join_max_buffered_bytes": "much"}, "join_max_buffered_bytes was given 'much'"),
        ({"join_buffer_policy": "drop"}, "join_buffer_policy was given 'drop'.*spill"),
        ({"join_buffer_policy": "spill", "join_max_buffered_bytes": 0}, "a limit above 0"),
        ({"join_buffer_policy": "spill", **NOTHING_HOT}, "join_buffer_policy was given 'spill'.*max_hot_bytes already sets"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        built(HashJoin, CLICKS, VIEWS, **options)


@pytest.mark.parametrize("options", [{"join_max_buffered_bytes": 1000}, {"join_buffer_policy": "spill"}])
def test_a_limit_where_it_would_do_nothing_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match='"clicks" and "pages" are not both') as refused:
        built(HashJoin, CLICKS, PAGES, **options)

    assert refused.value.code == "BUFFER_NOT_APPEND"


def test_a_join_with_keys_has_no_limit() -> None:
    join = HashJoin(CLICKS, PAGES)

    assert join.buffered(Tick(0), Epochs(join).deltas()) is None
