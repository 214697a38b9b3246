"""Options of every operator are refused by name."""

from __future__ import annotations

import pytest

from zset_join.core.errors import OptionError
from zset_join.shapes.operator_options import OperatorOptions


def test_a_policy_for_bad_input_that_does_not_exist_is_refused() -> None:
    with pytest.raises(OptionError, match="ignore") as refused:
        OperatorOptions(on_bad_input="ignore")
    assert refused.value.code == "UNKNOWN_POLICY"


@pytest.mark.parametrize("options", [{"chunk_rows": 0}, {"part_changes": 0}, {"hash_bits": 0}, {"hash_bits": 33}])
def test_chunks_without_rows_and_hashes_of_another_width_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(OptionError) as refused:
        OperatorOptions(**options)  # type: ignore[arg-type]
    assert refused.value.code == "OPTION_RANGE"
