"""Where the epochs of a query run, by its options."""

from __future__ import annotations

from unittest import mock

import pytest

from zset_join.core.errors import OptionError
from zset_join.core.options import QueryOptions
from zset_join.runners.spark.driver.choosing import chosen_mode


@pytest.mark.parametrize("more", [{"execution": "executors"}, {"buckets": 4}])
def test_columns_that_are_needed_alone_are_no_choice_of_executors(more: dict[str, object]) -> None:
    options = QueryOptions.draft({"keepState": "needed", **more})

    with pytest.raises(OptionError, match="KEEP_STATE_EXECUTORS"):
        chosen_mode(options, has_place=False, plan=mock.Mock(), expected=mock.Mock())
