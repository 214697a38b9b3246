"""COLUMN=VALUE arguments of the command line as values of columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from zset_join.core.errors import OptionError

__all__ = ["row_values"]


def row_values(values: Sequence[str], schema: pa.Schema) -> Mapping[str, Any]:
    """Return COLUMN=VALUE arguments as values of the columns; an empty value is NULL."""
    row: dict[str, Any] = {}
    for text in values:
        name, sign, value = text.partition("=")
        if not sign:
            raise OptionError(f"{text!r}: expected COLUMN=VALUE.", code="ROW_QUESTION", value=text)
        if name not in schema.names or not value:
            row[name] = None
            continue
        kind = schema.field(name).type
        try:
            row[name] = pa.scalar(value).cast(kind).as_py()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise OptionError(f"{text!r}: {error}", code="ROW_QUESTION", value=text) from error
    return row
