"""The directory of a checkpoint, made before Spark makes it."""

from __future__ import annotations

from zset_join.core.errors import StateError
from zset_join.storage.folder import is_local, local_path
from zset_join.storage.local import make_directories

__all__ = ["make_place"]


def make_place(location: str) -> None:
    """Make the directory of a checkpoint, so that it is our error that says why it cannot be.

    Args:
        location: `checkpointLocation`; a URI is left to Spark.

    Raises:
        StateError: it cannot be made.
    """
    if not is_local(location):
        return
    try:
        make_directories(local_path(location))
    except OSError as error:
        raise StateError(
            f"the checkpoint {location} cannot be made: {error}. Give a checkpointLocation where this process may write.",
            code="STORAGE_FAILED",
            location=location,
        ) from error
