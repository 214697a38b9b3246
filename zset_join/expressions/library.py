"""Functions that are declared whole in one place: their types, their values, and their text for Spark and DuckDB.

A family is a module; `zset_join.expressions.operations` defines how many operands each function takes, where its row does not
(`zset_join.expressions.declared`).
"""

from __future__ import annotations

from zset_join.expressions.calendar_functions import CALENDAR_FUNCTIONS
from zset_join.expressions.computed import Function
from zset_join.expressions.declared import DECLARED
from zset_join.expressions.nested_functions import NESTED_FUNCTIONS
from zset_join.expressions.number_functions import NUMBER_FUNCTIONS
from zset_join.expressions.text_functions import TEXT_FUNCTIONS

__all__ = ["LIBRARY"]

LIBRARY: dict[str, Function] = {
    **TEXT_FUNCTIONS,
    **NUMBER_FUNCTIONS,
    **CALENDAR_FUNCTIONS,
    **NESTED_FUNCTIONS,
    **DECLARED,
}
"""By name."""
