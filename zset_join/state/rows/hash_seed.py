"""Seeds of key hashes, so that colliding keys cannot be chosen in advance.

The law: a seed changes hashes and nothing else. All tables of one operator share one; state that is mapped from files is opened
again with the seed it was written with. The seed is an option of an operator; a query takes that of its checkpoint. Where
none is given, one is drawn, and kept in the directory of the state, in the file `hash_seed`.

Limits: 32 bits, which protect from keys that were chosen without the seed; a reader of the checkpoint has it.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, replace
from pathlib import Path

from zset_join.core.errors import OptionError, StateError
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.state.rows.usage import make_directory
from zset_join.storage.operations import perform

__all__ = ["IN_MEMORY", "SEED_FILE", "HashTables", "choose_seed", "hash_key", "seed_of_query"]

SEED_FILE = "hash_seed"
_MOST = (1 << 32) - 1


def hash_key(hash_bits: int, hash_seed: int) -> int:
    """Return the argument of the kernels: the seed, and below it the bits of a hash that are kept.

    >>> hex(hash_key(32, 7)), hex(hash_key(4, 0))
    ('0x7ffffffff', '0xf0000000')
    """
    mask = ((1 << hash_bits) - 1) << (32 - hash_bits)
    high = hash_seed - (1 << 32) if hash_seed >> 31 else hash_seed  # the word is signed
    return (high << 32) | mask


def seed_of_query(query_id: str) -> int:
    """Return the seed of a query, which all its workers and all its restarts agree on."""
    return int.from_bytes(hashlib.sha256(query_id.encode()).digest()[:4], "little")


def choose_seed(hash_seed: int | None, directory: str | None) -> int:
    """Return the seed that is given, or the one of a directory, or else a new one."""
    if hash_seed is not None:
        if not 0 <= hash_seed <= _MOST:
            raise OptionError(f"hash_seed={hash_seed!r} must be a number from 0 to 2^32 - 1.", code="OPTION_RANGE")
        return hash_seed
    if directory is None:
        return secrets.randbits(32)
    make_directory(directory)
    path = Path(directory) / SEED_FILE
    try:
        written = perform("read", str(path), lambda: path.read_text(encoding="ascii"))
    except FileNotFoundError:
        seed = secrets.randbits(32)
        perform("write", str(path), lambda: path.write_text(f"{seed}\n", encoding="ascii"))
        return seed
    if not written.strip().isdigit() or int(written) > _MOST:
        raise StateError(
            f"{path} does not hold the seed of hashes. The local state is a cache: delete the directory and it is rebuilt from "
            "the checkpoint.",
            code="STATE_HALF_WRITTEN",
            directory=directory,
        )
    return int(written)


@dataclass(frozen=True, slots=True, kw_only=True)
class HashTables:
    """Describe where the tables of an operator's state lie, and how their keys are hashed.

    >>> HashTables(hash_bits=4, hash_seed=7).beside().hash_seed
    7
    """

    directory: str | None = None  # of mapped files; None keeps everything in memory
    hash_bits: int = 32  # fewer than 32 force collisions
    hash_seed: int | None = None  # the same for all tables that are compared; None: that of `directory`, else a new one

    @classmethod
    def of(cls, options: OperatorOptions) -> HashTables:
        """Return those of an operator with their seed; one that is drawn is written to the directory."""
        return cls(directory=options.directory, hash_bits=options.hash_bits, hash_seed=options.hash_seed).seeded()

    def seeded(self) -> HashTables:
        """Return them with their seed; errors as of `of`."""
        return self if self.hash_seed is not None else replace(self, hash_seed=choose_seed(None, self.directory))

    def beside(self) -> HashTables:
        """Return tables in memory whose hashes are those of these."""
        return replace(self, directory=None)

    @property
    def hash_key(self) -> int:
        """Return the argument of the kernels."""
        return hash_key(self.hash_bits, choose_seed(self.hash_seed, self.directory))


IN_MEMORY = HashTables()
