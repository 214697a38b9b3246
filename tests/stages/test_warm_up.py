from __future__ import annotations

import pyarrow as pa
import pytest

from zset_join.core.relation import Relation
from zset_join.expressions import left, right
from zset_join.stages import JoinStage, RouteStage
from zset_join.stages.warm_up import warm_up

EVERY_TYPE = pa.schema(
    {
        "id": pa.int64(),
        "flag": pa.bool_(),
        "text": pa.string(),
        "bytes": pa.binary(),
        "amount": pa.decimal128(10, 2),
        "day": pa.date32(),
        "at": pa.timestamp("us", tz="UTC"),
        "span": pa.duration("us"),
        "ratio": pa.float64(),
        "tags": pa.list_(pa.struct({"k": pa.string()})),
        "nested": pa.struct({"a": pa.int8(), "b": pa.list_(pa.int64())}),
        "map": pa.map_(pa.string(), pa.int64()),
    }
)


@pytest.mark.parametrize("is_hybrid", [False, True])
@pytest.mark.parametrize("mode", ["append", "changelog", "upsert"])
def test_any_join_can_be_warmed_up_before_a_row_is_there(mode: str, is_hybrid: bool) -> None:
    keyed = {"primary_key": ("id",), "sequence_by": ("at",)} if mode == "upsert" else {}
    orders = Relation(name="orders", schema=EVERY_TYPE, join_key=("text",), mode=mode, **keyed)  # type: ignore[arg-type]
    customers = Relation(name="customers", schema=EVERY_TYPE, join_key=("text",))
    routes = [RouteStage(source=orders)] if mode == "upsert" else []
    fed = routes[0].output if routes else orders

    join = JoinStage(left=fed, right=customers, how="full", residual=left("ratio") <= right("ratio"))
    warm_up([*routes, join], is_hybrid=is_hybrid)
