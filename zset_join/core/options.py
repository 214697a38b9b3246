"""The options of a running query, checked when they are given.

Names are written as Spark's (`checkpointLocation`); case and underscores do not matter, so `on_bad_input` and
`onBadInput` are the same option. An unknown name, a value of the wrong kind and a value out of range raise an
`OptionError` before anything runs.

| option | default | meaning |
|---|---|---|
| `checkpointLocation` | required | directory or URI for progress and state, one per query; shared by driver and workers |
| `execution` | `executors` | `executors`: a task per bucket; `driver`: one pipeline in the driver process; `auto` |
| `driverMemory` | half of the memory | maximum bytes of state of a query that runs on the driver |
| `driverThreads` | 1 | threads that work on an epoch on the driver, 1 to 64; every start may have another number |
| `keepState` | `all` | `needed` stores no column of a source that nothing reads; no `evolve` can use it |
| `maxDeltaBytes` | 1 GiB | maximum bytes of rows per epoch on the driver; 0: no limit |
| `buckets` | cores of the session | partitions of the state, 1 to 4096; stored in the checkpoint, changed by `rescale` |
| `onBadInput` | `error` | `error`: the epoch fails; `quarantine`: bad rows go to `deadLetterPath`, the rest is processed |
| `deadLetterPath` | `<checkpoint>/quarantine` | directory of quarantined rows, one subdirectory per epoch |
| `localStateDir` | `zset_join-<user id>` in the temporary directory | directory of the workers' mapped state; a cache |
| `tombstoneRetention` | `2 days` | how long the sequence of a deleted key is kept |
| `idleTimeout` | never | after this time without rows a stream no longer holds up watermarks, until its next row |
| `chunkRows` | 65536 | maximum rows per chunk of an answer |
| `maxRecordsPerBatch` | 100000 | rows that Spark sends to a worker at once |
| `snapshotAfterBytes` | 67108864 | a snapshot follows a log beyond this and its live rows, or of 4,096 small epochs |
| `undoEpochs` | 1000 | for so many epochs behind a change of the query `undo` returns to the query before |
| `retainInputLog` | false | keep all input, so that `verify()` can start from the first epoch; a rescaling ends it |
| `udfVersion` | | version of the query's Python functions; a restart with another one is rejected |
| `join_max_buffered_bytes` | 524288000 | size limit of an append-only join; 0: none, the default of a hybrid join |
| `join_buffer_policy` | `abort` | at the limit: `abort` the epoch, or `spill` rows to disk |
| `default_hash_join` | `memory` | `memory`: all rows in memory; `hybrid`: hot rows only, within a budget |
| `default_hash_table` | `memory` | the same for the groups of aggregates and DISTINCT |
| `cold_store` | `files` | store of cold rows: `files`, or `duckdb`, one DuckDB file per bucket and stage |
| `max_hot_keys` | no limit | rows and groups of hybrid state in memory, divided equally among buckets of hybrid stages |
| `max_hot_bytes` | no limit | bytes of hybrid state in memory, divided equally among buckets of hybrid stages |
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, cast, get_args

from spill.media import duckdb_memory_bytes, require_medium
from zset_join.core.errors import OptionError

__all__ = [
    "DEFAULT_JOIN_MAX_BUFFERED_BYTES",
    "BadInputPolicy",
    "BufferLimit",
    "BufferPolicy",
    "ColdStoreKind",
    "ExecutionMode",
    "HashJoinKind",
    "HotBudget",
    "KeepState",
    "QueryOptions",
    "parse_seconds",
]

BadInputPolicy = Literal["error", "quarantine"]
ExecutionMode = Literal["driver", "executors", "auto"]
KeepState = Literal["all", "needed"]
"""Which columns of sources a query stores: all, or those that it reads."""
BufferPolicy = Literal["abort", "spill"]
HashJoinKind = Literal["memory", "hybrid"]
ColdStoreKind = Literal["files", "duckdb"]

DEFAULT_COLD_STORE: ColdStoreKind = "files"

DEFAULT_JOIN_MAX_BUFFERED_BYTES = 524_288_000

_UNIT_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_SPELLED = {
    "checkpointlocation": "checkpointLocation",
    "execution": "execution",
    "drivermemory": "driverMemory",
    "driverthreads": "driverThreads",
    "keepstate": "keepState",
    "maxdeltabytes": "maxDeltaBytes",
    "buckets": "buckets",
    "onbadinput": "onBadInput",
    "deadletterpath": "deadLetterPath",
    "localstatedir": "localStateDir",
    "tombstoneretention": "tombstoneRetention",
    "idletimeout": "idleTimeout",
    "chunkrows": "chunkRows",
    "maxrecordsperbatch": "maxRecordsPerBatch",
    "snapshotafterbytes": "snapshotAfterBytes",
    "undoepochs": "undoEpochs",
    "retaininputlog": "retainInputLog",
    "udfversion": "udfVersion",
    "joinmaxbufferedbytes": "join_max_buffered_bytes",
    "joinbufferpolicy": "join_buffer_policy",
    "defaulthashjoin": "default_hash_join",
    "defaulthashtable": "default_hash_table",
    "coldstore": "cold_store",
    "maxhotkeys": "max_hot_keys",
    "maxhotbytes": "max_hot_bytes",
}
_MOST_BUCKETS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferLimit:
    """Limit of the bytes of an append-only join, and the action at the limit; build it with `of`.

    Args:
        max_bytes: left and right together stay below it; 0 for no limit.
        policy: `abort` or `spill`.
    """

    max_bytes: int = DEFAULT_JOIN_MAX_BUFFERED_BYTES
    policy: BufferPolicy = "abort"

    @classmethod
    def of(cls, max_bytes: Any = DEFAULT_JOIN_MAX_BUFFERED_BYTES, policy: Any = "abort") -> Self:
        """Check a given limit.

        Args:
            max_bytes: a number of bytes, or 0 or None for no limit.
            policy: one of `BufferPolicy`.

        Raises:
            OptionError: a value that is not allowed, or values that do not go together.

        >>> BufferLimit.of("1000000", "spill").spills, BufferLimit.of(None).max_bytes
        (True, 0)
        """
        chosen = str(policy).lower()
        if chosen not in get_args(BufferPolicy):
            raise _refused("join_buffer_policy", policy, '"abort" or "spill"')
        limit = 0 if max_bytes is None else _whole("join_max_buffered_bytes", max_bytes, 0, 2**62)
        if chosen != "abort" and not limit:
            raise _refused("join_max_buffered_bytes", max_bytes, f'a limit above 0 with join_buffer_policy="{chosen}"')
        return cls(max_bytes=limit, policy=cast("BufferPolicy", chosen))

    @property
    def refuses(self) -> bool:
        """Return whether an epoch that reaches the limit is refused."""
        return self.policy == "abort" and self.max_bytes > 0

    @property
    def spills(self) -> bool:
        """Return whether rows go to disk at the limit."""
        return self.policy == "spill"

    def check_applies(self, *, is_append_only: bool, left: str, right: str) -> None:
        """Reject a limit without effect."""
        if is_append_only or self in (BufferLimit(), BufferLimit(max_bytes=0)):
            return
        raise OptionError(
            f'join_max_buffered_bytes={self.max_bytes} and join_buffer_policy="{self.policy}" are for a join of two inputs in '
            f'append mode, and "{left}" and "{right}" are not both: what they hold follows their keys and retractions. Leave '
            "the options out, or declare both sides append-only.",
            code="BUFFER_NOT_APPEND",
            left=left,
            right=right,
        )

    def beside(self, budget: HotBudget | None, cold_store: Any = None) -> tuple[Self, HotBudget | None]:
        """Return the limit and the budget that both options make together.

        `spill` is hybrid state with so many bytes in memory. A hybrid join counts its rows on disk too, and has a limit where
        another one than the default was requested.

        Args:
            budget: of a hybrid join, None for one in memory.
            cold_store: of spilled rows, as for `HotBudget.of`.

        Raises:
            OptionError: a policy that a hybrid join cannot follow, or does not need.

        >>> BufferLimit.of(1000, "spill").beside(None)[1]
        HotBudget(max_hot_keys=None, max_hot_bytes=1000, cold_store='files')
        """
        if budget is None:
            if not self.spills:
                return self, None
            return self, HotBudget.of("hybrid", max_hot_bytes=self.max_bytes, cold_store=cold_store)
        if self.spills:
            instead = "max_hot_bytes already sets how many bytes stay in memory"
            raise _refused("join_buffer_policy", self.policy, f'"abort" with default_hash_join="hybrid": {instead}')
        return replace(self, max_bytes=0) if self == type(self)() else self, budget


@dataclass(frozen=True, slots=True, kw_only=True)
class HotBudget:
    """Memory budget of hybrid state; build it with `of`.

    Keys are counted as rows, since a key is the primary key of a row or the row itself.

    Args:
        max_hot_keys: rows in memory, both sides together; None for no limit.
        max_hot_bytes: bytes of the rows in memory and of their slots in hash tables, both sides together; None for no limit.
        cold_store: where the rest lies: `files` or `duckdb`.
    """

    max_hot_keys: int | None = None
    max_hot_bytes: int | None = None
    cold_store: ColdStoreKind = DEFAULT_COLD_STORE

    def __post_init__(self) -> None:
        """Refuse a budget without a limit, and limits that are no sizes."""
        limits = {"max_hot_keys": self.max_hot_keys, "max_hot_bytes": self.max_hot_bytes}
        if all(value is None for value in limits.values()):
            raise _refused("hybrid", None, "max_hot_bytes, max_hot_keys or both beside it")
        for name, value in limits.items():
            if value is not None:
                _whole(name, value, 0, 2**62)

    @classmethod
    def of(
        cls,
        kind: Any,
        max_hot_keys: Any = None,
        max_hot_bytes: Any = None,
        *,
        cold_store: Any = None,
        option: str = "default_hash_join",
    ) -> Self | None:
        """Check a given budget; None for state in memory, which has none.

        Args:
            kind: one of `HashJoinKind`.
            max_hot_keys: a number of rows.
            max_hot_bytes: a number of bytes.
            cold_store: one of `ColdStoreKind`; None for the default.
            option: name of the option with the kind, for messages.

        Raises:
            OptionError: a value that is not allowed, a budget without hybrid state, hybrid state without a budget, or a place
                for cold rows that is not installed.

        >>> HotBudget.of("hybrid", max_hot_bytes="1000000")
        HotBudget(max_hot_keys=None, max_hot_bytes=1000000, cold_store='files')
        """
        chosen = str(kind).lower()
        if chosen not in get_args(HashJoinKind):
            raise _refused(option, kind, '"memory" or "hybrid"')
        given = {"max_hot_keys": max_hot_keys, "max_hot_bytes": max_hot_bytes}
        limits = {name: None if value is None else _whole(name, value, 0, 2**62) for name, value in given.items()}
        if chosen == "hybrid":
            if limits == {"max_hot_keys": None, "max_hot_bytes": None}:
                raise _refused(option, kind, "max_hot_bytes, max_hot_keys or both beside it")
            medium = DEFAULT_COLD_STORE if cold_store is None else str(cold_store).lower()
            if medium not in get_args(ColdStoreKind):
                raise _refused("cold_store", cold_store, '"files" or "duckdb"')
            require_medium(medium)
            return cls(**limits, cold_store=cast("ColdStoreKind", medium))
        for name, value in {**given, "cold_store": cold_store}.items():
            if value is not None:
                raise _refused(name, value, f'it with {option}="hybrid" only: state in memory has no budget')
        return None

    def describe_cold_store(self) -> str:
        """Return where the rest lies, and why.

        >>> HotBudget(max_hot_keys=500, cold_store="duckdb").describe_cold_store()
        'cold_store="duckdb": one DuckDB file per bucket and stage, beside the budget at most 64 MB of memory each'
        """
        if self.cold_store == "files":
            return 'cold_store="files": plain files, the default because an epoch of a join takes less than with "duckdb"'
        memory = duckdb_memory_bytes(self.max_hot_bytes) >> 20
        return (
            f'cold_store="duckdb": one DuckDB file per bucket and stage, beside the budget at most {memory} MB of memory each'
        )

    def describe(self) -> str:
        """Return it in words.

        >>> HotBudget(max_hot_keys=500, max_hot_bytes=64 << 20).describe()
        '500 keys and 67,108,864 bytes'
        """
        keys = [] if self.max_hot_keys is None else [f"{self.max_hot_keys:,} keys"]
        return " and ".join(keys + ([] if self.max_hot_bytes is None else [f"{self.max_hot_bytes:,} bytes"]))

    def share(self, buckets: int) -> Self:
        """Return the budget of one of so many buckets; together they stay within this one."""
        return replace(
            self,
            max_hot_keys=None if self.max_hot_keys is None else self.max_hot_keys // buckets,
            max_hot_bytes=None if self.max_hot_bytes is None else self.max_hot_bytes // buckets,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """The checked options of one query; see the module header.

    Build it with `from_options`; the defaults here are those of the table.
    """

    checkpoint_location: str
    buckets: int | None = None
    on_bad_input: BadInputPolicy = "error"
    dead_letter_path: str | None = None
    local_state_dir: str | None = None
    tombstone_retention_seconds: int = 2 * 86400
    idle_timeout_seconds: int | None = None
    chunk_rows: int = 65536
    max_records_per_batch: int = 100_000
    execution: ExecutionMode = "executors"
    driver_memory: int | None = None
    driver_threads: int = 1
    keep_state: KeepState = "all"
    max_delta_bytes: int = 1 << 30
    snapshot_after_bytes: int = 64 * 1024 * 1024
    undo_epochs: int = 1000
    retain_input_log: bool = False
    udf_version: str | None = None
    buffer_limit: BufferLimit = field(default_factory=BufferLimit)
    hot_budget: HotBudget | None = None
    table_budget: HotBudget | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> QueryOptions:
        """Check options given by name.

        Args:
            options: name to value; values may be text, as Spark's options are.

        Raises:
            OptionError: an unknown name, a name given twice, a missing `checkpointLocation`, or a value that is not
                allowed.

        >>> QueryOptions.from_options({"checkpointLocation": "/data/cp", "on_bad_input": "Quarantine"}).on_bad_input
        'quarantine'
        """
        given = _by_plain_name(options)
        if not given.get("checkpointlocation"):
            raise OptionError(
                "the option checkpointLocation is missing; a query keeps its progress and its state there. "
                'Add .option("checkpointLocation", "/a/directory/of/its/own").',
                code="MISSING_CHECKPOINT_LOCATION",
                option="checkpointLocation",
            )
        return cls._checked(given)

    @classmethod
    def draft(cls, options: Mapping[str, Any]) -> QueryOptions:
        """Check options given by name, of a query whose `checkpointLocation` may not be chosen yet."""
        return cls._checked({"checkpointlocation": "(not chosen yet)", **_by_plain_name(options)})

    @classmethod
    def _checked(cls, given: Mapping[str, Any]) -> QueryOptions:
        policy = str(given.get("onbadinput", "error")).lower()
        if policy not in ("error", "quarantine"):
            raise _refused("onBadInput", given["onbadinput"], '"error" or "quarantine"')
        execution = str(given.get("execution", "executors")).lower()
        if execution not in get_args(ExecutionMode):
            raise _refused("execution", given["execution"], '"driver", "executors" or "auto"')
        buckets, memory = given.get("buckets"), given.get("drivermemory")
        buffer_limit, hot_budget, table_budget = _limits(given)
        return cls(
            checkpoint_location=_text("checkpointLocation", given["checkpointlocation"]),
            buckets=None if buckets is None else _whole("buckets", buckets, 1, _MOST_BUCKETS),
            on_bad_input="quarantine" if policy == "quarantine" else "error",
            dead_letter_path=_optional_text("deadLetterPath", given.get("deadletterpath")),
            local_state_dir=_optional_text("localStateDir", given.get("localstatedir")),
            tombstone_retention_seconds=parse_seconds(given.get("tombstoneretention", "2 days"), option="tombstoneRetention"),
            idle_timeout_seconds=parse_seconds(given.get("idletimeout", 0), option="idleTimeout") or None,
            chunk_rows=_whole("chunkRows", given.get("chunkrows", 65536), 1, 10_000_000),
            max_records_per_batch=_whole("maxRecordsPerBatch", given.get("maxrecordsperbatch", 100_000), 1, 10_000_000),
            execution=cast("ExecutionMode", execution),
            driver_memory=None if memory is None else _whole("driverMemory", memory, 1, 2**62),
            driver_threads=_whole("driverThreads", given.get("driverthreads", 1), 1, 64),
            keep_state=_keep_state(given.get("keepstate", "all")),
            max_delta_bytes=_whole("maxDeltaBytes", given.get("maxdeltabytes", 1 << 30), 0, 2**62),
            snapshot_after_bytes=_whole("snapshotAfterBytes", given.get("snapshotafterbytes", 64 * 1024 * 1024), 0, 2**62),
            undo_epochs=_whole("undoEpochs", given.get("undoepochs", 1000), 0, 2**62),
            retain_input_log=_flag("retainInputLog", given.get("retaininputlog", False)),
            udf_version=_optional_text("udfVersion", given.get("udfversion")),
            buffer_limit=buffer_limit,
            hot_budget=hot_budget,
            table_budget=table_budget,
        )


def _keep_state(value: Any) -> KeepState:
    chosen = str(value).lower()
    if chosen not in get_args(KeepState):
        raise _refused("keepState", value, '"all" or "needed"')
    return cast("KeepState", chosen)


def _limits(given: Mapping[str, Any]) -> tuple[BufferLimit, HotBudget | None, HotBudget | None]:
    """Return the limit of an append-only join, the budget of joins and that of groups: one budget, for whichever is hybrid."""
    buffer_limit = BufferLimit.of(
        given.get("joinmaxbufferedbytes", DEFAULT_JOIN_MAX_BUFFERED_BYTES),
        given.get("joinbufferpolicy", "abort"),
    )
    limits, medium = (given.get("maxhotkeys"), given.get("maxhotbytes")), given.get("coldstore")
    join, table = given.get("defaulthashjoin", "memory"), given.get("defaulthashtable", "memory")
    joins, tables = (str(kind).lower() == "hybrid" for kind in (join, table))
    takes_join = joins or not tables
    medium_of_join = None if not takes_join or (buffer_limit.spills and not joins) else medium
    hot_budget = HotBudget.of(join, *(limits if takes_join else ()), cold_store=medium_of_join)
    table_budget = HotBudget.of(
        table, *(limits if tables else ()), cold_store=medium if tables else None, option="default_hash_table"
    )
    return (*buffer_limit.beside(hot_budget, medium), table_budget)


def parse_seconds(value: Any, *, option: str) -> int:
    """Return a duration in seconds.

    >>> parse_seconds("90 minutes", option="tombstoneRetention")
    5400
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    parts = re.fullmatch(r"\s*(\d+)\s*(?:(second|minute|hour|day|week)s?)?\s*", str(value).lower())
    if parts is None or isinstance(value, bool):
        raise _refused(option, value, 'a duration such as "2 days", "90 minutes" or 3600 (seconds)')
    return int(parts[1]) * _UNIT_SECONDS[parts[2] or "second"]


def _by_plain_name(options: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, value in options.items():
        plain = str(name).replace("_", "").lower()
        if plain not in _SPELLED:
            close = difflib.get_close_matches(plain, _SPELLED, n=1)
            hint = f"did you mean {_SPELLED[close[0]]}?" if close else f"known options: {', '.join(_SPELLED.values())}."
            raise OptionError(
                f"the option {name!r} (value {value!r}) is unknown; {hint}",
                code="UNKNOWN_OPTION",
                option=name,
                value=value,
            )
        if plain in given and given[plain] != value:
            raise OptionError(
                f"the option {_SPELLED[plain]} was given twice, as {given[plain]!r} and as {value!r}; keep one of them.",
                code="OPTION_GIVEN_TWICE",
                option=_SPELLED[plain],
            )
        given[plain] = value
    return given


def _refused(option: str, value: Any, expected: str) -> OptionError:
    return OptionError(
        f"the option {option} was given {value!r}; expected {expected}.", code="OPTION_VALUE", option=option, value=value
    )


def _whole(option: str, value: Any, least: int, most: int) -> int:
    try:
        number = int(str(value))
    except ValueError as error:
        raise _refused(option, value, f"a whole number from {least} to {most}") from error
    if not least <= number <= most:
        raise _refused(option, value, f"a whole number from {least} to {most}")
    return number


def _flag(option: str, value: Any) -> bool:
    plain = str(value).lower()
    if plain not in ("true", "false"):
        raise _refused(option, value, "true or false")
    return plain == "true"


def _text(option: str, value: Any) -> str:
    text = str(value)
    if not text.strip():
        raise _refused(option, value, "a path")
    return text


def _optional_text(option: str, value: Any) -> str | None:
    return None if value is None else _text(option, value)
