"""Search for damage in a checkpoint: every file listed by its newest commit record is compared with its checksum.

The law: nothing is repaired or changed, and one damaged file does not hide another. A query that runs may clear a file away
while it is looked at; a checkpoint that has gone on since is looked at again.

Cost: every listed file is read once, up to `MOST_BYTES`; of the rest the size is compared.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from zset_join.checkpoint.clearing import RECORDS_KEPT
from zset_join.checkpoint.files import CheckpointFiles, FileEntry
from zset_join.checkpoint.reading import RECORD_NAME, CommittedState, query_plan, read_committed, read_record, stored_query_id
from zset_join.checkpoint.record import CommitRecord
from zset_join.core.errors import ZsetJoinError
from zset_join.core.hidden_settings import shown

__all__ = ["damage_of", "known_records"]

MOST_BYTES = 512 << 20
_TIMES = 3


def damage_of(location: str) -> dict[str, Any]:
    """Return `checked` files, the `bytes` read and what was `found`, each with `file`, `code` and `what`."""
    for _ in range(_TIMES):
        found: list[dict[str, Any]] = []
        committed = _tried(found, lambda: read_committed(location))
        _tried(found, lambda: query_plan(location))
        if committed is None:
            if not found:
                place = shown(location)
                found.append({"file": place, "code": "NO_CHECKPOINT", "what": f"there is no checkpoint in {place}"})
            return {"checked": 0, "bytes": 0, "found": found}
        checked, read_bytes = 0, 0
        for entry in _listed(committed):
            checked += 1
            if read_bytes + entry.bytes <= MOST_BYTES:
                read_bytes += entry.bytes
                _tried(found, functools.partial(committed.files.check, entry))
            elif committed.files.folder.size(entry.name) != entry.bytes:
                file = committed.files.uri(entry.name)
                found.append({"file": file, "code": "DAMAGED_FILE", "what": f"{file} is missing or of another size"})
        _, broken = known_records(committed.files)
        found += [one for one in broken if one not in found]
        if not found or not _has_moved_on(committed, location):
            return {"checked": checked, "bytes": read_bytes, "found": found}
    return {"checked": checked, "bytes": read_bytes, "found": found}


def known_records(files: CheckpointFiles, *, after: int = -1) -> tuple[list[CommitRecord], list[dict[str, Any]]]:
    """Return the readable commit records after an epoch, oldest first, and errors: unreadable and missing ones."""
    matches = [RECORD_NAME.fullmatch(name) for name in files.folder.names("commits")]
    epochs = {int(match[1]) for match in matches if match is not None}
    if epochs:
        epochs.update(range(max(min(epochs), max(epochs) - RECORDS_KEPT + 1), max(epochs)))
    records: list[CommitRecord] = []
    found: list[dict[str, Any]] = []
    for epoch in sorted(epoch for epoch in epochs if epoch > after):
        record = _tried(found, functools.partial(read_record, files, epoch))
        if record is not None:
            records.append(record)
    return records, found


def _listed(committed: CommittedState) -> Iterator[FileEntry]:
    for history in committed.histories.values():
        if history.snapshot is not None:
            yield from history.snapshot.tables.values()
        for log in history.logs:
            yield from log.files
    if committed.last is not None:
        yield from (part.file for part in committed.last.parts)


def _tried(found: list[dict[str, Any]], read: Any) -> Any:
    try:
        return read()
    except (ZsetJoinError, OSError) as error:
        facts = getattr(error, "facts", {})
        one = {"file": str(facts.get("file", "")), "code": getattr(error, "code", "OS_ERROR"), "what": str(error)}
        if one not in found:
            found.append(one)
        return None


def _has_moved_on(before: CommittedState, location: str) -> bool:
    if stored_query_id(location) is None:
        return False
    now: list[dict[str, Any]] = []
    committed = _tried(now, lambda: read_committed(location))
    if committed is None or committed.last is None or before.last is None:
        return False
    return bool(committed.last.epoch != before.last.epoch)
