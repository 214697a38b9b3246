"""The fetch step: from keys to their external rows, in batches, with retries, a back-off and a cache.

The law: every requested key gets the rows that the source returned during this fetch, or within the lifetime of the cache. A
key is in one call at a time. Only an empty answer is a miss, and only misses are requested again: `max_retries` times, each
`delay` after the call before it completed. Where misses are parked between epochs, nothing is retried here.

*Sync*: the batches one after the other; then one wait, and all misses again. *Async*: up to `capacity` calls under way, each
with its own retries and its own timeout. `ordered` gives the answers in the order of the keys and begins a call only when the
oldest one under way has room, as a queue does; unordered gives them as they come, and begins one as soon as any is done.

A fetcher is opened once per worker, and closed; it is for one thread at a time. Cost: the calls; memory: keys and answers of
an epoch.

Source: FLIP-234 and FLIP-232 (retries, capacity, timeout, output mode), FLIP-221 (cache).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass, fields
from random import Random
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from zset_join.core.errors import LookupFailedError, ZsetJoinError
from zset_join.core.row_conversion import take_rows
from zset_join.core.shown_values import counted
from zset_join.lookup.cache import FullCache, PartialCache
from zset_join.lookup.options import LookupSettings
from zset_join.lookup.secret import secrets_of, without_secrets
from zset_join.lookup.source import Clock, LookupClient, LookupSource, Opening, SystemClock, TransientLookupError
from zset_join.shapes.lookup import LookupShape
from zset_join.state.rows.keyed_rows import KeyedRows
from zset_join.zset import single_batch

__all__ = ["Fetcher", "LookupCounts"]

_MOST_DOUBLINGS = 6


@dataclass(slots=True)
class LookupCounts:
    """Counts since the start of the worker.

    Args:
        calls: to the source.
        keys: requested in them.
        rows: that arrived.
        misses: keys without an answer, per call.
        retries: keys that were requested again.
        waited_us: between attempts.
        transient_errors: calls that failed transiently.
        cache_hits: keys that the cache answered for.
        cache_misses: keys that it did not.
        loads: of the whole table.
    """

    calls: int = 0
    keys: int = 0
    rows: int = 0
    misses: int = 0
    retries: int = 0
    waited_us: int = 0
    transient_errors: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    loads: int = 0

    def to_json(self) -> dict[str, int]:
        """Return them by name."""
        return {at.name: getattr(self, at.name) for at in fields(self)}

    def since(self, before: Mapping[str, int]) -> dict[str, int]:
        """Return the counts since another state of them, by name."""
        return {name: count - before[name] for name, count in self.to_json().items()}

    def add(self, more: Mapping[str, int]) -> None:
        """Add counts by name."""
        for name, count in more.items():
            setattr(self, name, getattr(self, name) + count)


_Result = TypeVar("_Result")


class LoopThread:
    """Run coroutines, one caller at a time; connections that they open stay with this loop."""

    def __init__(self, clock: Clock) -> None:
        self._loop = clock.event_loop()
        self._thread = threading.Thread(target=self._run, name="zset-join-lookups", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine and return its result; cancel it if the caller is interrupted."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the loop; closed already is no error."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Fetcher:
    """Fetches from one source for one join."""

    def __init__(
        self,
        source: LookupSource,
        shape: LookupShape,
        settings: LookupSettings,
        *,
        clock: Clock | None = None,
        seed: int | None = None,
    ) -> None:
        self.source = source
        self.settings = settings
        self.counts = LookupCounts()
        self._shape = shape
        self._clock = SystemClock() if clock is None else clock
        self._back_off = BackOff(settings, Random(seed))  # noqa: S311 - jitter is no secret
        self._circuit = Circuit(source.name, settings.circuit_open_us, self._clock)
        self._schema = pa.schema([field.with_nullable(True) for field in shape.table.schema])
        self._client: LookupClient | None = None
        self._loop: LoopThread | None = None
        self._partial: PartialCache | None = None
        self._full: FullCache | None = None
        if settings.cache == "partial":
            self._partial = PartialCache(
                shape.key_schema, shape.table.schema, ttl_us=settings.cache_ttl_us, max_rows=settings.cache_max_rows
            )
        elif settings.cache == "full":
            self._full = FullCache(
                self._schema,
                interval_us=settings.reload_interval_us,
                load=self._load,
                keys_of=shape.table_keys_of,
            )

    def fetch(self, keys: pa.RecordBatch) -> pa.Table:
        """Return the external rows of some distinct keys."""
        if not keys.num_rows:
            return self._schema.empty_table()
        if self._full is not None:
            self._circuit.check()
            hits, rows = self._full.find(keys, self._clock.now_us())
            self.counts.cache_hits += hits
            self.counts.cache_misses += keys.num_rows - hits
            self.counts.loads = self._full.loads
            return pa.Table.from_batches([rows])
        parts: list[pa.RecordBatch] = []
        wanted = keys
        if self._partial is not None:
            known, cached = self._partial.find(keys, self._clock.now_us())
            hits = int(known.sum())
            self.counts.cache_hits += hits
            self.counts.cache_misses += keys.num_rows - hits
            parts.append(cached)
            wanted = take_rows(keys, np.flatnonzero(~known))
        if wanted.num_rows:
            self._circuit.check()
            fetched = self._request(wanted)
            parts.append(fetched)
            if self._partial is not None:
                self._partial.remember(
                    wanted,
                    fetched,
                    own_keys=self._shape.table_keys_of(fetched),
                    missing=self.settings.cache_missing and not self.settings.parks,
                    now_us=self._clock.now_us(),
                )
        return pa.Table.from_batches(parts, schema=self._schema)

    def close(self) -> None:
        """Release connections; closed already is no error."""
        client, self._client = self._client, None
        loop, self._loop = self._loop, None
        try:
            if client is not None and loop is not None:
                loop.run(client.aclose())
        finally:
            if loop is not None:
                loop.close()
            if client is not None:
                client.close()

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---------------------------------------------------------------- requests

    def _opened(self) -> LookupClient:
        if self._client is None:
            opening = Opening(
                key=tuple(self._shape.key_schema.names),
                columns=tuple(self._shape.table.schema.names),
                is_async=self.settings.is_async,
                max_connections=self.settings.max_connections,
                clock=self._clock,
            )
            self._client = self.source.open(opening)
        return self._client

    def _request(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Call the source, and mind the circuit."""
        try:
            if self.settings.is_async:
                if self._loop is None:
                    self._loop = LoopThread(self._clock)
                parts = self._loop.run(self._request_async(keys))
            else:
                parts = self._call_sync(keys)
        except LookupFailedError:
            self._circuit.failed()
            raise
        self._circuit.succeeded()
        return pa.concat_batches(parts)

    def _batches(self, keys: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for begin in range(0, keys.num_rows, self.settings.batch_keys):
            yield keys.slice(begin, self.settings.batch_keys)

    @property
    def _attempts(self) -> int:
        return 1 if self._circuit.is_half_open else self.settings.error_attempts

    @property
    def _retries(self) -> int:
        return 0 if self.settings.parks else self.settings.max_retries

    def _call_sync(self, keys: pa.RecordBatch) -> list[pa.RecordBatch]:
        parts: list[pa.RecordBatch] = []
        wanted = keys
        for attempt in range(self._retries + 1):
            if attempt:
                self._clock.sleep(self.settings.delay_us / 1_000_000)
                self._note_retry(wanted)
            missed = []
            for batch in self._batches(wanted):
                rows, missing = self._judged(batch, self._call(batch))
                parts.append(rows)
                missed.append(missing)
            wanted = pa.concat_batches(missed)
            if not wanted.num_rows:
                break
        return parts

    def _call(self, batch: pa.RecordBatch) -> Any:
        for attempt in range(1, self._attempts + 1):
            self._note_call(batch)
            try:
                return self._opened().lookup(pa.Table.from_batches([batch]))
            except TransientLookupError as error:
                self.counts.transient_errors += 1
                if attempt == self._attempts:
                    raise self._failed(batch, error, attempt) from self._cause(error)
                self._clock.sleep(self._wait(attempt, error))
            except (ZsetJoinError, KeyboardInterrupt, SystemExit):
                raise
            except Exception as error:  # noqa: BLE001 - raised again as the error of the lookup
                raise self._failed(batch, error, attempt) from self._cause(error)
        raise AssertionError("a call has at least one attempt")

    def _wait(self, attempt: int, error: TransientLookupError) -> float:
        seconds = self._back_off.wait_seconds(attempt, error)
        self.counts.waited_us += round(seconds * 1_000_000)
        return seconds

    async def _request_async(self, keys: pa.RecordBatch) -> list[pa.RecordBatch]:
        waiting = deque(self._batches(keys))
        under_way: deque[asyncio.Task[list[pa.RecordBatch]]] = deque()
        parts: list[pa.RecordBatch] = []
        try:
            while waiting or under_way:
                while waiting and len(under_way) < self.settings.capacity:
                    under_way.append(asyncio.create_task(self._complete(waiting.popleft())))
                if self.settings.is_ordered:
                    await asyncio.wait([under_way[0]])
                    parts += under_way.popleft().result()
                else:
                    done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                    for task in [task for task in under_way if task in done]:
                        under_way.remove(task)
                        parts += task.result()
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
        return parts

    async def _complete(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Request one batch until it is settled, within the timeout."""
        parts: list[pa.RecordBatch] = []
        wanted, attempts = batch, 0
        try:
            async with asyncio.timeout(self.settings.timeout_us / 1_000_000):
                for attempt in range(self._retries + 1):
                    if attempt:
                        await asyncio.sleep(self.settings.delay_us / 1_000_000)
                        self._note_retry(wanted)
                    attempts += 1
                    rows, wanted = self._judged(wanted, await self._call_async(wanted))
                    parts.append(rows)
                    if not wanted.num_rows:
                        break
        except TimeoutError as error:
            raise LookupFailedError(
                f'the lookup source "{self.source.name}" did not complete {counted(wanted.num_rows, "key")} such as '
                f"{_first(wanted)} within timeout={self.settings.timeout_us / 1_000_000:g} s, {attempts} attempts included; "
                "the epoch was not applied. Raise timeout, lower fixed_delay or max_attempts, or make the source faster.",
                code="LOOKUP_TIMEOUT",
                source=self.source.name,
                keys=wanted.num_rows,
                attempts=attempts,
                timeout_seconds=self.settings.timeout_us / 1_000_000,
            ) from error
        return parts

    async def _call_async(self, batch: pa.RecordBatch) -> Any:
        for attempt in range(1, self._attempts + 1):
            self._note_call(batch)
            try:
                return await self._opened().lookup_async(pa.Table.from_batches([batch]))
            except TransientLookupError as error:
                self.counts.transient_errors += 1
                if attempt == self._attempts:
                    raise self._failed(batch, error, attempt) from self._cause(error)
                await asyncio.sleep(self._wait(attempt, error))
            except (ZsetJoinError, TimeoutError):
                raise
            except Exception as error:  # noqa: BLE001 - raised again as the error of the lookup
                raise self._failed(batch, error, attempt) from self._cause(error)
        raise AssertionError("a call has at least one attempt")

    def _load(self) -> pa.RecordBatch:
        """Load the whole table."""
        for attempt in range(1, self._attempts + 1):
            self.counts.calls += 1
            try:
                rows = self._conformed(self._opened().load())
            except TransientLookupError as error:
                self.counts.transient_errors += 1
                if attempt == self._attempts:
                    self._circuit.failed()
                    raise self._failed(None, error, attempt) from self._cause(error)
                self._clock.sleep(self._wait(attempt, error))
            except (ZsetJoinError, KeyboardInterrupt, SystemExit):
                raise
            except Exception as error:  # noqa: BLE001 - raised again as the error of the lookup
                self._circuit.failed()
                raise self._failed(None, error, attempt) from self._cause(error)
            else:
                self._circuit.succeeded()
                return rows
        raise AssertionError("a load has at least one attempt")

    # ---------------------------------------------------------------- judging

    def _judged(self, batch: pa.RecordBatch, answer: Any) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return the rows of requested keys, and the keys that have none."""
        rows = self._conformed(answer)
        self.counts.rows += rows.num_rows
        requested = KeyedRows("requested", self._shape.key_schema, self._shape.key_schema.names)
        requested.add(batch)
        positions, numbers = requested.find(self._shape.table_keys_of(rows))
        requested.close()
        is_missing = np.ones(batch.num_rows, np.bool_)
        is_missing[numbers - 1] = False
        missing = take_rows(batch, np.flatnonzero(is_missing))
        self.counts.misses += missing.num_rows
        return (rows if len(positions) == rows.num_rows else take_rows(rows, positions)), missing

    def _conformed(self, answer: Any) -> pa.RecordBatch:
        """Bring an answer to the table's columns and types."""
        if isinstance(answer, pa.RecordBatch):
            answer = pa.Table.from_batches([answer])
        if not isinstance(answer, pa.Table):
            raise self._unusable(f"a {type(answer).__name__} where a pyarrow Table was expected")
        lacking = [name for name in self._schema.names if name not in answer.schema.names]
        if lacking:
            raise self._unusable(f"no column {lacking}; it has {answer.schema.names}")
        columns = []
        for field in self._schema:
            column = answer.column(field.name)
            try:
                columns.append(column if column.type == field.type else column.cast(field.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise self._unusable(f'{column.type} in column "{field.name}", which is {field.type} ({error})') from error
        return single_batch(pa.Table.from_arrays(columns, schema=self._schema))

    def _unusable(self, what: str) -> LookupFailedError:
        return LookupFailedError(
            f'the lookup source "{self.source.name}" answered with {what}; the epoch was not applied. Correct the source, '
            f"or the "
            "schema it was declared with.",
            code="LOOKUP_ANSWER",
            source=self.source.name,
        )

    def _failed(self, batch: pa.RecordBatch | None, error: Exception, attempts: int) -> LookupFailedError:
        cause = without_secrets(str(error), *secrets_of(self.source))
        task = (
            "reading its whole table"
            if batch is None
            else f"looking up {counted(batch.num_rows, 'key')} such as {_first(batch)}"
        )
        return LookupFailedError(
            f'the lookup source "{self.source.name}" ({self.source.explain()}) failed {attempts} of {attempts} times '
            f"when {task}: {type(error).__name__}: {cause}. The epoch was not applied. Restart the source, correct "
            f"the connection, or raise error_attempts.",
            code="LOOKUP_FAILED",
            source=self.source.name,
            keys=0 if batch is None else batch.num_rows,
            attempts=attempts,
            cause=type(error).__name__,
        )

    def _cause(self, error: Exception) -> Exception | None:
        """Return an error for a traceback to show; None where it would show a secret."""
        shown = str(error)
        return error if without_secrets(shown, *secrets_of(self.source)) == shown else None

    def _note_call(self, batch: pa.RecordBatch) -> None:
        self.counts.calls += 1
        self.counts.keys += batch.num_rows

    def _note_retry(self, wanted: pa.RecordBatch) -> None:
        self.counts.retries += wanted.num_rows
        self.counts.waited_us += self.settings.delay_us


def _first(batch: pa.RecordBatch) -> tuple[Any, ...]:
    return tuple(column[0].as_py() for column in batch.columns) if batch.num_rows else ()


# The law: a call that meets a transient error is made at most `error_attempts` times, each later one after a wait that doubles
# from `error_delay` to `error_max_delay`, with jitter (half of it is random), or after the delay that the external system
# requested, which `error_max_delay` bounds too. Then the epoch fails. While the circuit is open no call is made at all;
# afterwards one is, without retries, and only its success closes the circuit. So a runner that tries an epoch again and again
# does not hammer a source that is down.


class BackOff:
    """How long to wait before a call is repeated."""

    def __init__(self, settings: LookupSettings, random: Random) -> None:
        self._settings = settings
        self._random = random

    def wait_seconds(self, attempt: int, error: TransientLookupError) -> float:
        """Return the wait after so many failed attempts, the first being 1."""
        if error.retry_after_seconds is not None:
            return max(0.0, min(error.retry_after_seconds, self._settings.error_max_delay_us / 1_000_000))
        longest: int = min(self._settings.error_max_delay_us, self._settings.error_delay_us << min(attempt - 1, 40))
        return longest * (0.5 + self._random.random() / 2) / 1_000_000


class Circuit:
    """Remember that a source is down."""

    def __init__(self, name: str, open_us: int, clock: Clock) -> None:
        self._name = name
        self._open_us = open_us
        self._clock = clock
        self._failures = 0
        self._open_until_us = 0

    @property
    def is_half_open(self) -> bool:
        """Return whether the next call decides."""
        return self._failures > 0

    def check(self) -> None:
        """Raise while it is open."""
        left_us = self._open_until_us - self._clock.now_us()
        if self._failures and left_us > 0:
            raise LookupFailedError(
                f'the lookup source "{self._name}" failed {counted(self._failures, "time")} and is not called for another '
                f"{left_us / 1_000_000:.1f} s; it was not called and nothing was applied. Restart it, or shorten circuit_open.",
                code="LOOKUP_CIRCUIT_OPEN",
                source=self._name,
                failures=self._failures,
                wait_seconds=left_us / 1_000_000,
            )

    def failed(self) -> None:
        """Open it, each time for twice as long."""
        self._failures += 1
        self._open_until_us = self._clock.now_us() + self._open_us * 2 ** min(self._failures - 1, _MOST_DOUBLINGS)

    def succeeded(self) -> None:
        """Close it."""
        self._failures = 0
