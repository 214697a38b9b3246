"""Sources whose rows are only added: a retraction from one is refused, also where the source goes through no stage."""

from __future__ import annotations

import numpy as np

from zset_join.core.errors import BadInputError
from zset_join.core.relation import Relation
from zset_join.zset import ZSet

__all__ = ["check_appends"]


def check_appends(name: str, relation: Relation, delta: ZSet, *, epoch: int) -> None:
    """Refuse retractions from a source whose rows are only added.

    Args:
        name: the source.
        relation: its rows.
        delta: its rows.
        epoch: the epoch it came in.

    Raises:
        BadInputError: a row retracts.
    """
    if relation.mode != "append" or not (delta.weights < 0).any():
        return
    row = int(np.flatnonzero(delta.weights < 0)[0])
    raise BadInputError(
        f'source "{name}", epoch {epoch}: row {row} retracts, and rows of an append-only source are only added; '
        "nothing of the epoch was applied. Describe the source with changes(...).",
        code="RETRACTION_IN_APPEND",
        relation=name,
        epoch=epoch,
    )
