"""The contract of a stage: what has a default, and how stages are read."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.stages.every_stage import STAGES
from zset_join import Relation
from zset_join.core.errors import PlanError
from zset_join.stages import RouteStage, StageOptions, read_stage
from zset_join.zset.protocol import TimedOperator

ORDERS = Relation(
    name="orders", schema=pa.schema({"id": pa.int64(), "k": pa.int64()}), join_key=("k",), primary_key=("id",), mode="upsert"
)


def test_a_kind_that_is_not_known_is_refused():
    with pytest.raises(PlanError, match="teleport") as caught:
        read_stage({"kind": "teleport"})

    assert caught.value.code == "UNKNOWN_STAGE_KIND"


def test_tables_of_several_snapshots_become_one_whose_counts_are_their_sums():
    table = pa.table({"id": [1]})
    before = [{b"zset_join.absorbed_epoch": b"3", b"counts": b"[1, 2]", b"late": b"4"}, {b"counts": b"[10, 20]", b"late": b"5"}]

    made = RouteStage(source=ORDERS).regrouped(table, epoch=7, metadata=before)

    assert made.schema.metadata == {b"zset_join.absorbed_epoch": b"7", b"counts": b"[11, 22]", b"late": b"9"}


def test_a_table_without_counts_has_only_its_epoch():
    made = RouteStage(source=ORDERS).regrouped(pa.table({"id": [1]}), epoch=7, metadata=[])

    assert made.schema.metadata == {b"zset_join.absorbed_epoch": b"7"}


@pytest.mark.parametrize("kind", sorted(STAGES))
def test_a_stage_waits_for_time_where_its_operator_does(kind: str) -> None:
    operator = STAGES[kind].build(StageOptions(), None)

    assert STAGES[kind].waits_for_time == isinstance(operator, TimedOperator)
    operator.close()


def test_rows_wait_for_a_processing_time_where_they_end_or_become_current_by_it() -> None:
    assert {kind for kind, stage in STAGES.items() if stage.waits_for_clock} == {"current_versions", "state_ttl"}
