"""Spark's offset files: a digest of the input of an epoch, and whether the epoch is finished.

Spark writes `<checkpointLocation>/offsets/<epoch>` before it requests an epoch, and never changes it. When its files were
rolled back, it plans the epoch again and writes another one. It writes `<checkpointLocation>/commits/<epoch>` once the epoch is
in the output, and never requests that epoch again.
"""

from __future__ import annotations

import hashlib

from zset_join.storage.folder import open_folder

__all__ = ["is_completed", "offsets_digest"]


def offsets_digest(checkpoint_location: str, epoch: int) -> str | None:
    """Return the digest of an epoch's offsets; None when Spark keeps none where they are looked for."""
    content = open_folder(checkpoint_location).read(f"offsets/{epoch}")
    return None if content is None else hashlib.blake2b(content, digest_size=16).hexdigest()


def is_completed(checkpoint_location: str, epoch: int) -> bool:
    """Return whether Spark has completed an epoch and does not request it again."""
    return open_folder(checkpoint_location).size(f"commits/{epoch}") is not None
