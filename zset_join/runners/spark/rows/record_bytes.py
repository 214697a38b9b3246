"""Key and value of records as text, and what is shown of those that are no UTF-8.

Cost: a cast of Arrow's; where a text is no UTF-8, one pass of Python over the column.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

import pyarrow as pa

__all__ = ["as_texts"]

_NOT_UTF8 = "bytes that are no UTF-8"
_BYTES = (pa.binary(), pa.large_binary())


def as_texts(records: pa.RecordBatch) -> tuple[pa.Table, Mapping[str, pa.Array]]:
    """Return records with text in place of bytes, and what is shown of columns some of whose bytes are no UTF-8."""
    # Those bytes are a text that no format reads. Shown are the column itself, with a mark in place of what is no text, and
    # `{column}_base64`, NULL for bytes that are text.
    shown: dict[str, pa.Array] = {}
    table = pa.Table.from_batches([records])
    for at, field in enumerate(records.schema):
        if field.type not in _BYTES:
            continue
        column = records.column(at)
        try:
            texts = column.cast(pa.string())
        except pa.ArrowInvalid:
            decoded = [_text(one) for one in column.to_pylist()]
            texts, marked, coded = (pa.array(part, pa.string()) for part in zip(*decoded, strict=True))
            shown |= {field.name: marked, f"{field.name}_base64": coded}
        table = table.set_column(at, field.name, texts)
    return table, shown


def _text(given: bytes | None) -> tuple[str | None, str | None, str | None]:
    if given is None:
        return None, None, None
    try:
        text = given.decode()
    except UnicodeDecodeError:
        return _NOT_UTF8, given.decode(errors="replace"), base64.b64encode(given).decode()
    return text, text, None
