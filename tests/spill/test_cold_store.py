"""What every cold store does, by example; the laws are in property_tests/test_cold_store.py."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from property_tests.cold_histories import as_bag, as_codes, as_rows
from spill import cold_store as module
from spill.cold_store import ColdStore, cold_rows
from zset_join.core.errors import OptionError, ResourceError, StateError


def test_a_row_is_removed_once(store: ColdStore) -> None:
    store.put(as_rows([(7, 0, b"a")]))
    places = store.fetch(as_codes([7])).places
    store.remove(places)

    with pytest.raises(StateError) as refused:
        store.remove(places)

    assert refused.value.code == "COLD_PLACES"


def test_a_removal_with_one_bad_place_removes_nothing(store: ColdStore) -> None:
    store.put(as_rows([(7, 0, b"a"), (8, 0, b"b")]))
    gone = store.fetch(as_codes([7])).places
    store.remove(gone)

    with pytest.raises(StateError):
        store.remove(np.concatenate([gone, store.fetch(as_codes([8])).places]))

    assert store.row_count() == 1


def test_a_row_that_was_not_removed_cannot_be_restored(store: ColdStore) -> None:
    store.put(as_rows([(7, 0, b"a")]))

    found = store.fetch(as_codes([7]))

    with pytest.raises(StateError) as refused:
        store.restore(found.places)

    assert refused.value.code == "COLD_PLACES"


def test_rows_from_elsewhere_have_no_place_to_be_restored_to(store: ColdStore) -> None:
    assert store.restore(as_codes([1 << 50])).tolist() == [False]
    assert store.row_count() == 0


def test_the_rows_of_one_code_stream_in_chunks(store: ColdStore) -> None:
    rows = [(7, subcode, bytes(1000)) for subcode in range(500)]
    store.put(as_rows([*rows, (8, 0, b"other")]))

    chunks = list(store.stream(7, chunk_bytes=100_000))

    assert as_bag(chunks) == Counter(rows)
    assert max(chunk.row_bytes for chunk in chunks) <= 100_000


def test_nothing_put_is_nothing_kept(store: ColdStore) -> None:
    store.put(as_rows([]))

    assert (store.row_count(), list(store.scan()), len(store.fetch(as_codes([])))) == (0, [], 0)


def test_rows_may_be_a_slice_of_a_larger_array(store: ColdStore) -> None:
    array = pa.array([b"no", b"a", b"bb", b"no"], pa.large_binary()).slice(1, 2)

    store.put(cold_rows([7, 8], array))

    assert as_bag(store.scan()) == Counter([(7, 0, b"a"), (8, 0, b"bb")])


def test_rows_may_be_chunks_of_narrow_binaries(store: ColdStore) -> None:
    store.put(cold_rows([7, 8], pa.chunked_array([[b"a"], [b"bb"]], pa.binary())))

    assert as_bag(store.scan()) == Counter([(7, 0, b"a"), (8, 0, b"bb")])


def test_rows_without_a_code_are_refused() -> None:
    with pytest.raises(OptionError) as refused:
        cold_rows([7], [b"a", b"b"])

    assert refused.value.code == "COLD_ROWS"


def test_a_row_that_is_null_is_refused() -> None:
    with pytest.raises(OptionError, match="1 are NULL"):
        cold_rows([7, 8], [b"a", None])


def test_a_row_too_long_for_a_page_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROW_BYTES", 5)

    with pytest.raises(ResourceError) as refused:
        cold_rows([7, 8], [b"five!", b"sixsix"])

    assert (refused.value.code, refused.value.facts["row_bytes"]) == ("COLD_ROW_BYTES", 6)
