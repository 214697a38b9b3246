"""The options that every operator takes, and which values they may have."""

from __future__ import annotations

from zset_join.core.errors import OptionError

__all__ = ["check_policy", "check_sizes"]


def check_policy(on_bad_input: str) -> None:
    """Refuse a policy for bad input that does not exist.

    Raises:
        OptionError: `UNKNOWN_POLICY`.
    """
    if on_bad_input not in ("error", "quarantine"):
        raise OptionError(
            f'on_bad_input={on_bad_input!r} is unknown; use "error" or "quarantine".',
            code="UNKNOWN_POLICY",
            value=on_bad_input,
        )


def check_sizes(chunk_rows: int, hash_bits: int) -> None:
    """Refuse chunks without rows, and hashes without bits or of more than 32.

    Raises:
        OptionError: `OPTION_RANGE`.
    """
    if chunk_rows < 1 or not 1 <= hash_bits <= 32:
        raise OptionError(
            f"chunk_rows and part_changes (the smaller is {chunk_rows}) must be positive, hash_bits={hash_bits} in 1..32.",
            code="OPTION_RANGE",
        )
