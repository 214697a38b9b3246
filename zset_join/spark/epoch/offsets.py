"""What Spark says an epoch reads, as a digest: how a replay with other input is told from one with the same.

Spark writes `<checkpointLocation>/offsets/<epoch>` before it asks for an epoch, and never changes it. When its files were
rolled back, it plans the epoch anew and writes another one.
"""

from __future__ import annotations

import hashlib

from zset_join.storage.folder import open_folder

__all__ = ["offsets_digest"]


def offsets_digest(checkpoint_location: str, epoch: int) -> str | None:
    """Return the digest of an epoch's offsets; None when Spark keeps none where they are looked for.

    Args:
        checkpoint_location: `checkpointLocation`.
        epoch: the epoch.

    Cost: one small read.
    """
    content = open_folder(checkpoint_location).read(f"offsets/{epoch}")
    return None if content is None else hashlib.blake2b(content, digest_size=16).hexdigest()
