"""Epochs: the moment of one, and the chain that distinguishes two of one number.

A `Tick` names an epoch, its processing time, and the watermarks of event time before and after its rows. Operators have no
clock of their own: all they use of time comes from here, so a replayed epoch sees the time its first attempt saw.

The chain has a digest per epoch:

    digest(epoch) = H(digest(epoch - 1), query, epoch, what it read, its processing time where a timer may depend on it)

The law: two epochs with one digest come after the same epochs with the same input; so an output that keeps the digests of the
epochs it took can distinguish a repeated epoch from another one of the same number, as there is when an older checkpoint was
restored beside a newer output. What is read is Spark's offsets, or in process a digest of the logged input.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from zset_join.core.errors import StateError

__all__ = ["ChainLink", "Tick", "accepts_argument", "chained_digest", "short_mark"]


@dataclass(frozen=True, slots=True)
class Tick:
    """One epoch.

    Args:
        epoch: number of the epoch, counted from 0; inside Spark it is the batch id.
        processing_time_us: microseconds since 1970-01-01 UTC, set by the driver for the epoch; never decreases. None: nothing
            expires by processing time.
        watermark_before_us: event time that the stage's inputs had passed before this epoch, the smallest of them: rows at or
            before it are late. Microseconds, or in the unit of an integer event time. None: no watermark yet.
        watermark_us: the watermark after this epoch's rows; rows that wait for it are released in this epoch.

    >>> Tick(3, watermark_us=10).watermark_us
    10
    """

    epoch: int
    processing_time_us: int | None = None
    watermark_before_us: int | None = None
    watermark_us: int | None = None

    def check_follows(self, absorbed_epoch: int) -> None:
        """Reject an epoch that a state contains already, or a later one."""
        if self.epoch <= absorbed_epoch:
            raise StateError(
                f"epoch {self.epoch} was absorbed before (the state is at {absorbed_epoch}); every epoch is absorbed once, "
                "in order.",
                code="EPOCH_ABSORBED",
                epoch=self.epoch,
                absorbed_epoch=absorbed_epoch,
            )


@dataclass(frozen=True, slots=True)
class ChainLink:
    """Locate an epoch in the chain.

    Args:
        digest: of the epoch.
        before: of the epoch before it; None for the first one, and where a version without a chain committed it.
        begins: an output without any epoch begins with this one, which holds all rows of its view; not written down.
    """

    digest: str
    before: str | None = None
    begins: bool = field(default=False, compare=False)


def chained_digest(before: str | None, query_id: str, epoch: int, *read: Any) -> str:
    """Return the digest of an epoch.

    Args:
        before: digest of the epoch before it.
        query_id: the query of the epoch.
        epoch: the epoch.
        *read: what it read, JSON-ready.

    >>> first = chained_digest(None, "query", 0, "offsets")
    >>> len(first), first == chained_digest(None, "query", 0, "other offsets")
    (32, False)
    """
    link = json.dumps([before, query_id, epoch, *read])
    return hashlib.blake2b(link.encode(), digest_size=16, person=b"zset_join chain").hexdigest()


def short_mark(epoch: int, digest: str) -> str:
    """Return 62 bits of an epoch and its digest, as 16 hexadecimal digits: for outputs that can keep only a number.

    >>> len(short_mark(0, "d0")), short_mark(0, "d0") == short_mark(1, "d0")
    (16, False)
    """
    return f"{int.from_bytes(hashlib.blake2b(f'{epoch} {digest}'.encode(), digest_size=8).digest()) >> 2:016x}"


def accepts_argument(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function of a user's takes a keyword argument; one whose signature cannot be read does not.

    >>> accepts_argument(lambda rows, epoch, chain=None: None, "chain"), accepts_argument(print, "chain")
    (True, False)
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD or (parameter.name == name and parameter.kind in by_name)
        for parameter in parameters
    )
