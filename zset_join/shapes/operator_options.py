"""How an operator runs, whatever it computes: its policy for bad input, its sizes, and where its state lies."""

from __future__ import annotations

from dataclasses import dataclass, field

from zset_join.core.errors import OptionError
from zset_join.core.options import BufferLimit, HotBudget

__all__ = ["OperatorOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorOptions:
    """Options that operators share.

    `budget` applies to operators with hybrid state, `buffer_limit` to joins of two append-only inputs; the stages of others
    reject them.

    Args:
        on_bad_input: `error` raises and applies nothing; `quarantine` omits bad rows and lists them in `rejections`.
        tombstone_retention_seconds: how long the sequence of a deleted key is stored (processing time).
        chunk_rows: rows per chunk of an answer.
        part_changes: number of changes per part of a large epoch of a join; fastest if a part fits the processor's second
            cache.
        hash_bits: below 32, force collisions; for tests.
        hash_seed: of hashes; default: that of `directory`, else a random one.
        directory: map the state from files here; None keeps it in memory.
        budget: of hybrid state in memory; the rest is on disk, in `directory` or a temporary directory. None: all in memory.
        buffer_limit: of an append-only join (both sides in append mode).

    Raises:
        OptionError: `UNKNOWN_POLICY`, or `OPTION_RANGE`: chunks without rows, hashes without bits or of more than 32.

    >>> OperatorOptions(on_bad_input="quarantine").chunk_rows
    65536
    """

    on_bad_input: str = "error"
    tombstone_retention_seconds: int = 2 * 86_400
    chunk_rows: int = 65_536
    part_changes: int = 16_384
    hash_bits: int = 32
    hash_seed: int | None = None
    directory: str | None = None
    budget: HotBudget | None = None
    buffer_limit: BufferLimit = field(default_factory=BufferLimit)

    def __post_init__(self) -> None:
        if self.on_bad_input not in ("error", "quarantine"):
            raise OptionError(
                f'on_bad_input={self.on_bad_input!r} is unknown; use "error" or "quarantine".',
                code="UNKNOWN_POLICY",
                value=self.on_bad_input,
            )
        smaller = min(self.chunk_rows, self.part_changes)
        if smaller < 1 or not 1 <= self.hash_bits <= 32:
            raise OptionError(
                f"chunk_rows and part_changes (the smaller is {smaller}) must be positive, "
                f"hash_bits={self.hash_bits} in 1..32.",
                code="OPTION_RANGE",
            )

    @property
    def tombstone_retention_us(self) -> int:
        """Return how long the sequence of a deleted key is stored, in microseconds."""
        return self.tombstone_retention_seconds * 1_000_000
