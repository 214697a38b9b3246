"""When the runs of one input may lose rows, and losing them. Kernels in `zset_join.kernels.time.expiry`.

Files: `<name>.due`, `<name>.forget`. Bytes: 16 per key with more than one version, and per DELETE that is remembered.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from zset_join.kernels.time import expiry as e
from zset_join.kernels.time.runs import NEVER
from zset_join.state.time.expiries import DueHeap
from zset_join.state.time.key_runs import KeyRuns
from zset_join.state.time.versioned_rows import VersionedRows

__all__ = ["ExpiringRuns"]

_Words = npt.NDArray[np.int64]
_LEAST_KEYS, _LEAST_ROWS = 4096, 8192


class ExpiringRuns:
    def __init__(
        self, rows: VersionedRows, keys: KeyRuns, *, keeps_newest: bool, first_word: int, directory: str | None
    ) -> None:
        self.rows, self._keys, self._keeps_newest = rows, keys, keeps_newest
        self._first_word, self._directory = first_word, directory
        self._open()

    def _open(self) -> None:
        header, name = self._keys.header, self.rows.name
        self._due = DueHeap(header, self._first_word, directory=self._directory, name=name)
        self._forget = DueHeap(header, self._first_word + 1, directory=self._directory, name=f"{name}.forget")

    def expire(
        self, touched: _Words, horizon: int | None, *, now: int | None, retention: int, changes: int
    ) -> tuple[int, _Words]:
        """Let keys wait whose rows have changed, then free what is past; return how many rows, and the keys they were of."""
        past = -NEVER if horizon is None else horizon
        view, place, side = self._keys.view, self.rows.place, self.rows.view
        self._due.make_room(len(touched))
        self._due.length = int(
            e.schedule(view, place, side, self._keeps_newest, touched, self._due.address, self._due.length, past)
        )
        if horizon is None:
            return 0, np.zeros(0, np.int64)
        most = min(max(_LEAST_KEYS, changes + changes // 4), self._due.length)
        dues, keys, forgetting = (np.empty(most, np.int64) for _ in range(3))
        forget_time = NEVER if now is None else now + retention
        forget_place, variables = self._keys.forget_place, self.rows.variables.address
        self._due.make_room(1)
        length, freed, count, forgets = e.expire(
            view,
            place,
            forget_place,
            side,
            variables,
            self._keeps_newest,
            self._due.address,
            self._due.length,
            past,
            most,
            max(_LEAST_ROWS, 4 * changes),
            forget_time,
            dues,
            keys,
            forgetting,
        )
        self._due.length = int(length)
        self._forget.push(forget_time, forgetting[: int(forgets)])
        if now is None or self._forget.length == 0:
            return int(freed), keys[: int(count)]
        most = min(max(_LEAST_KEYS, changes + changes // 4), self._forget.length)
        forgotten = np.empty(most, np.int64)
        length, dropped, newest = e.forget_deletes(
            view, place, forget_place, side, variables, self._forget.address, self._forget.length, now, past, most, forgotten
        )
        self._forget.length = int(length)
        self._keys.forgotten_until = max(self._keys.forgotten_until, int(newest))
        return int(freed + dropped), np.concatenate([keys[: int(count)], forgotten[: int(dropped)]])

    def resident_bytes(self) -> int:
        return self._due.resident_bytes() + self._forget.resident_bytes()

    def is_current(self) -> bool:
        return self._due.is_current() and self._forget.is_current()

    def reopen(self) -> None:
        """Forget everything, after the keys have been."""
        self.close(remove=True)
        self._open()

    def close(self, *, remove: bool = False) -> None:
        self._due.close(remove=remove)
        self._forget.close(remove=remove)
