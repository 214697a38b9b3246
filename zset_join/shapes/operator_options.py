"""How an operator runs, whatever it computes: its policy for bad input, its sizes, and where its state lies."""

from __future__ import annotations

from dataclasses import dataclass, field

from zset_join.core.errors import OptionError
from zset_join.core.options import BufferLimit, HotBudget

__all__ = ["OperatorOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorOptions:
    """Hold the options that operators share.

    An operator whose state has no cold part takes no `budget`, and one that is no join of two append-only inputs no
    `buffer_limit`: their stages refuse both.

    Args:
        on_bad_input: `error` raises and applies nothing; `quarantine` leaves bad rows out and lists them in `rejections`.
        tombstone_retention_seconds: how long a deleted key remembers its sequence (in processing time).
        chunk_rows: rows per chunk of an answer.
        part_changes: changes of a large epoch of a join that are worked off together; what fits the processor's second cache
            is fastest.
        hash_bits: below 32, force collisions; for tests.
        hash_seed: what hashes are seeded with; default: that of `directory`, else a new one.
        directory: map the state from files here; None keeps it in memory.
        budget: what of a hybrid state may be in memory, the rest is on disk, in `directory` or else among the host's temporary
            files; None keeps all of it in memory.
        buffer_limit: what an append-only join may hold (both sides in append mode).

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
        """Reject invalid values."""
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
        """Return how long a deleted key remembers its sequence, in microseconds."""
        return self.tombstone_retention_seconds * 1_000_000
