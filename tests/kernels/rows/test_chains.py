from __future__ import annotations

import numpy as np
import pyarrow as pa

from zset_join.state.rows.keyed_rows import KeyedRows


def test_many_rows_of_many_keys_are_all_listed_once():
    generator = np.random.default_rng(7)
    keys, values = generator.integers(0, 50, 2000), np.arange(2000)
    kept = KeyedRows("many", pa.schema({"k": pa.int64(), "v": pa.int64()}), ("k",))
    kept.add(pa.record_batch({"k": keys, "v": values}))
    requested = np.arange(60)
    positions, numbers = kept.find(pa.record_batch({"k": requested}))
    found = list(zip(positions.tolist(), kept.gather(numbers, ("v",)).column("v").to_pylist(), strict=True))
    assert found == [(key, value) for key in requested.tolist() for value in values[keys == key].tolist()]
