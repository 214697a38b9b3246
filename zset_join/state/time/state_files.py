"""Whether mapped files belong to the operator that opens them, and are whole.

Every arena carries a fingerprint of all that its bytes depend on, the boot of the host included; the arena of keys is also
marked while it is written. What does not fit is refused: it is a cache, and rebuilt from the checkpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from zset_join.core.errors import StateError
from zset_join.kernels.rows import side as s
from zset_join.state.rows.row_arena import RowArena
from zset_join.zset.row_layout import RowLayout

__all__ = ["fingerprint", "open_arena", "refuse_half_written"]

_LAYOUT_VERSION = 1
_TITLE = "It is a cache: delete the directory and it is rebuilt from the checkpoint."


def fingerprint(*facts: object) -> int:
    """Return a number that changes with any of the facts and with the boot of the host."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        boot = ""
    description = repr((_LAYOUT_VERSION, boot, *map(str, facts)))
    return int.from_bytes(hashlib.sha256(description.encode()).digest()[:7], "little") + 1


def open_arena(layout: RowLayout, facts: Sequence[object], *, directory: str | None, name: str) -> RowArena:
    arena = RowArena(layout, directory=directory, name=name)
    own = fingerprint(name, layout.schema, layout.stride, layout.sequence_words, *facts)
    if arena.header[s.H_FINGERPRINT] == 0:
        arena.header[s.H_FINGERPRINT] = own
        arena.header[s.H_ABSORBED_EPOCH] = -1
    elif arena.header[s.H_FINGERPRINT] != own:
        arena.close()
        raise StateError(
            f'the local state "{name}" in {directory} was written for another relation, library version or before the host '
            f"restarted. {_TITLE}",
            code="STATE_FINGERPRINT",
            relation=name,
            directory=directory,
        )
    return arena


def refuse_half_written(arena: RowArena, *, directory: str | None) -> None:
    """Raise StateError when the process that wrote the state died on it."""
    if arena.header[s.H_DIRTY] != 0:
        raise StateError(
            f"the local state in {directory} was being written when its process died. {_TITLE}",
            code="STATE_HALF_WRITTEN",
            directory=directory,
        )
