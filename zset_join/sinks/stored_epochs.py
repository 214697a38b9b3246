"""Which epochs an output holds, for who looks at it and does not write: nothing is made, changed or fenced off.

The law: what is found was true at one moment, and stays true: an output that holds an epoch holds it for ever.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from zset_join.core.epoch_chain import short_mark
from zset_join.core.errors import SinkError

__all__ = ["StoredEpochs", "marks_of", "stored_views"]


@dataclass(frozen=True, slots=True)
class StoredEpochs:
    """Position of one output."""

    query_id: str
    last: int | None
    mark_of: Callable[[int], str | None]
    table: str | None = None
    detail: str = ""


def marks_of(digests: Mapping[int, str | None]) -> Callable[[int], str | None]:
    """Return a function from an epoch to its mark, given the digests of epochs."""

    def mark_of(epoch: int) -> str | None:
        digest = digests.get(epoch)
        return short_mark(epoch, digest) if digest else None

    return mark_of


def stored_views(rows: Iterable[Mapping[str, Any]], table: str | None) -> list[StoredEpochs]:
    """Return the contents of a table `_zset_join_epochs`.

    >>> found = stored_views([{"view": "v", "query_id": "q", "epoch": 4, "chain": '[[4, "d4"]]'}], None)
    >>> found[0].last, found[0].mark_of(4) == short_mark(4, "d4"), found[0].mark_of(3)
    (4, True, None)
    """
    known = list(rows)
    found = [row for row in known if table is None or row["view"].lower() == table.lower()]
    if not found:
        raise SinkError(
            f"the database has the views {sorted(row['view'] for row in known)}, and not {table!r}. Name one of them, or leave "
            "the name out for all.",
            code="SINK_IO",
            table=table,
        )
    return [
        StoredEpochs(row["query_id"], row["epoch"], marks_of(dict(json.loads(row.get("chain") or "[]"))), table=row["view"])
        for row in found
    ]
