"""Between the changes that systems write down and the deltas that the engine works with.

`formats` names the ways in which a row shows its kind of change, `decoding` turns such rows into a delta, `encoding` writes
a delta down as such rows.
"""

from __future__ import annotations

from zset_join.changelog.decoding import Decoded, decode
from zset_join.changelog.encoding import check_key, encode, encoded_schema
from zset_join.changelog.formats import (
    AppendFormat,
    ChangeDataFeedFormat,
    ChangelogForm,
    ChangelogFormat,
    RecordForm,
    RowKindFormat,
    UpsertFormat,
    WeightFormat,
    format_named,
)

__all__ = [
    "AppendFormat",
    "ChangeDataFeedFormat",
    "ChangelogForm",
    "ChangelogFormat",
    "Decoded",
    "RecordForm",
    "RowKindFormat",
    "UpsertFormat",
    "WeightFormat",
    "check_key",
    "decode",
    "encode",
    "encoded_schema",
    "format_named",
]
