"""Options of every operator are refused by name."""

from __future__ import annotations

import pytest

from zset_join.core.errors import OptionError
from zset_join.shapes.operator_options import check_policy, check_sizes


def test_a_policy_for_bad_input_that_does_not_exist_is_refused() -> None:
    with pytest.raises(OptionError, match="ignore") as refused:
        check_policy("ignore")
    assert refused.value.code == "UNKNOWN_POLICY"


@pytest.mark.parametrize(("chunk_rows", "hash_bits"), [(0, 32), (1, 0), (1, 33)])
def test_chunks_without_rows_and_hashes_of_another_width_are_refused(chunk_rows: int, hash_bits: int) -> None:
    with pytest.raises(OptionError) as refused:
        check_sizes(chunk_rows, hash_bits)
    assert refused.value.code == "OPTION_RANGE"
