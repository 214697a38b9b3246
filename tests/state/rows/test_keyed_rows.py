from __future__ import annotations

import numpy as np
import pyarrow as pa

from zset_join.state.rows.hash_seed import HashTables
from zset_join.state.rows.keyed_rows import KeyedRows

SCHEMA = pa.schema({"k": pa.float64(), "name": pa.string(), "v": pa.int64()})


def _filled(**options) -> KeyedRows:
    kept = KeyedRows("rates", SCHEMA, ("k", "name"), **options)
    kept.add(
        pa.record_batch(
            [pa.array([0.0, 1.0, -0.0, None]), pa.array(["a", "a long enough name", "a", "n"]), pa.array([1, 2, 3, 4])],
            schema=SCHEMA,
        )
    )
    return kept


def _keys(*keys: tuple[float | None, str]) -> pa.RecordBatch:
    return pa.record_batch({"k": pa.array([k for k, _ in keys], pa.float64()), "name": pa.array([name for _, name in keys])})


def test_a_key_finds_its_rows_in_the_order_they_came():
    kept = _filled()
    positions, numbers = kept.find(_keys((5.0, "a"), (-0.0, "a"), (1.0, "a long enough name")))
    assert positions.tolist() == [1, 1, 2]
    assert kept.gather(numbers, ("v",)).column("v").to_pylist() == [1, 3, 2]


def test_null_finds_nothing_unless_it_is_safe():
    assert _filled().find(_keys((None, "n")))[0].tolist() == []
    assert _filled(null_safe=True).find(_keys((None, "n")))[0].tolist() == [0]


def test_colliding_hashes_are_distinguished_by_value():
    kept = _filled(tables=HashTables(hash_bits=1))
    assert kept.find(_keys((1.0, "a"), (0.0, "a")))[0].tolist() == [1, 1]


def test_rows_leave_by_number_and_weights_can_change():
    kept = _filled()
    _, numbers = kept.find(_keys((0.0, "a")))
    kept.remove(numbers[:1])
    kept.set_weights(numbers[1:], np.array([7]))
    _, left = kept.find(_keys((0.0, "a")))
    assert (left.tolist(), kept.weights(left).tolist(), len(kept)) == ([numbers[1]], [7], 3)


def test_a_snapshot_brings_the_rows_back():
    kept, other = _filled(), KeyedRows("rates", SCHEMA, ("k", "name"))
    other.restore(kept.reader().read_all())
    assert (
        other.gather(other.find(_keys((0.0, "a")))[1]).to_pylist() == kept.gather(kept.find(_keys((0.0, "a")))[1]).to_pylist()
    )
