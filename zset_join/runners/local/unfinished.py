"""Error of a pipeline whose epoch was interrupted: whether the epoch counts, and what to do.

The law: an exception of any kind, at any line of a step, leaves a pipeline that continues as if nothing had happened, or one
that refuses every further step. What it reports of the epoch follows from the commit record.
"""

from __future__ import annotations

from collections.abc import Mapping

from zset_join.core.errors import StateError
from zset_join.storage.full_disk import EpochOutcome

__all__ = ["closed", "closed_unread", "epoch_gap", "out_of_memory", "unfinished"]

_DURABLE: Mapping[EpochOutcome, str] = {
    "open": "failed or was interrupted while it was committed, and does not count: open the pipeline again from its directory, "
    "and give it the rows of this epoch again",
    "committed": "was committed, and a later step failed or was interrupted: do not send its rows again. Open the pipeline "
    "again from its directory; it continues after this epoch, and its outputs receive missing epochs",
    "unknown": "failed or was interrupted while it was committed, and whether it counts cannot be seen: open the pipeline "
    "again from its directory, and compare its attribute epoch",
}


def closed() -> StateError:
    return StateError("this pipeline was closed. Rebuild it, or open it again from its directory.", code="PIPELINE_BROKEN")


def closed_unread(view: str, location: str) -> StateError:
    """Return the error of a view that is read after its pipeline was closed, when files of the directory are gone."""
    return StateError(
        f'view "{view}" was not read before this pipeline was closed, and the files in {location} that hold it are gone: '
        "another pipeline has continued the directory, or it was removed. Open the directory again, or read the view before "
        "close().",
        code="PIPELINE_BROKEN",
        view=view,
    )


def unfinished(epoch: int, outcome: EpochOutcome | None) -> StateError:
    if outcome is None:
        what = "failed or was interrupted while it was applied, and this pipeline is in memory: rebuild it from its inputs"
    else:
        what = _DURABLE[outcome]
    return StateError(f"epoch {epoch} {what}.", code="PIPELINE_BROKEN", epoch=epoch)


def out_of_memory(epoch: int, failure: MemoryError, refusal: StateError | None, *, is_taken: bool) -> StateError:
    if refusal is not None:
        what = f"Besides, {refusal.message}"
    elif is_taken:
        what = "The epoch was applied, and the next step passes it to the outputs: do not send its rows again."
    else:
        what = "Nothing of it was applied: give its rows in several steps, or set a memory budget."
    reason = str(failure) or "no reason given"
    return StateError(
        f"epoch {epoch} needs more memory than this process has ({reason}). {what}", code="OUT_OF_MEMORY", epoch=epoch
    )


def epoch_gap(epoch: int, expected: int) -> StateError:
    return StateError(
        f"step(epoch={epoch}) was called, and the next epoch of this pipeline is {expected}; only that one can be taken, and "
        "the one before be answered again.",
        code="EPOCH_GAP",
        epoch=epoch,
        expected=expected,
    )
