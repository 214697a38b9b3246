"""Choice between driver and executors, and the memory of a query on the driver.

    driver       the plan runs there, and no option requests executors; its state stays below the budget
    executors    the option `buckets` requests several, or the state is expected to be larger

The law: a checkpoint keeps the mode it began with. A query that is new and whose state is not known yet begins on the driver
where `execution` is `auto`; it stops with the cure when its state outgrows the budget.

The budget is `driverMemory`, else half of what the machine, or the container this process runs in, has.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlparse

from zset_join.checkpoint.local_state import default_local_state_dir
from zset_join.checkpoint.reading import stored_description
from zset_join.core.errors import OptionError, PlanError, ResourceError, StateError
from zset_join.core.options import QueryOptions
from zset_join.runners.spark.frames.facts import reader_of
from zset_join.runners.spark.planning.source_stream import SourceStream

__all__ = [
    "Choice",
    "available_bytes",
    "choice_of_connect",
    "chosen_mode",
    "expected_state",
    "memory_budget",
    "memory_bytes",
    "refuse_first_rows",
    "refuse_larger_state",
    "refuse_outgrown",
    "refuse_without_memory",
    "state_bytes",
    "stored_mode",
]

_CGROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "cache"),
)
_WORK = 2
"""An epoch needs so many times the bytes of its rows beside them: as its operators arrange them, and as its answer."""


def memory_bytes() -> int:
    """Return the bytes of memory of the container of this process, or of the machine."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *(limit for limit, _ in _containers())])


def available_bytes() -> int:
    """Return the bytes that this process may still take, with those that the system can reclaim from its caches."""
    free = [limit - used for limit, used in _containers()]
    lines = (_read(Path("/proc/meminfo")) or "").splitlines()
    free += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return max(0, min(free)) if free else memory_bytes()


def refuse_without_memory(held: int, epoch: int) -> None:
    """Refuse an epoch whose rows are here and whose answer would not fit into memory; nothing is applied."""
    available = available_bytes()
    if _WORK * held > available:
        raise ResourceError(
            f"the rows of epoch {epoch} have {held:,} bytes, and its answer needs {_WORK} times as many; {available:,} bytes "
            "of memory are left on the driver. Limit what the sources read per epoch: the option maxFilesPerTrigger of files, "
            'maxOffsetsPerTrigger of Kafka; give the driver more memory; or start the query with execution="executors", a new '
            "checkpointLocation and a new output.",
            code="DELTA_TOO_LARGE",
            epoch=epoch,
            bytes=held,
            limit=available // _WORK,
        )


def _containers() -> list[tuple[int, int]]:
    """Return limit and use of the container of this process, where there is one with a limit."""
    found = []
    for folder, most, now, cache in _CGROUPS:
        limit, used = _read(Path(folder) / most), _read(Path(folder) / now)
        if limit is None or used is None or not limit.strip().isdigit():
            continue
        counts = dict(line.split() for line in (_read(Path(folder) / "memory.stat") or "").splitlines())
        found.append((int(limit), int(used) - int(counts.get(cache, 0))))
    return found


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return None


Mode = Literal["driver", "executors"]


@dataclass(frozen=True)
class Choice:
    mode: Mode
    reason: str


def stored_mode(location: str) -> Mode | None:
    """Return where the epochs of a checkpoint run; None of a new one."""
    stored = stored_description(location)
    if stored is None:
        return None
    return "driver" if "keeps_view" in stored else "executors"


def chosen_mode(
    options: QueryOptions, *, has_place: bool, plan: Callable[[], object], expected: Callable[[], Expectation]
) -> Choice:
    if options.execution != "auto":
        return Choice(options.execution, f'execution="{options.execution}"')
    stored = stored_mode(options.checkpoint_location) if has_place else None
    if stored is not None:
        return Choice(stored, "its checkpoint began there")
    if (options.buckets or 1) > 1:
        return Choice("executors", f"buckets={options.buckets}")
    try:
        plan()
    except (PlanError, OptionError) as error:
        return Choice("executors", f"the driver cannot run it: {error.message}")
    expectation, budget = expected(), memory_budget(options)
    if expectation.size is not None and expectation.size > budget:
        return Choice("executors", f"{expectation}, and the driver may have {budget:,} (driverMemory)")
    return Choice("driver", f"it is new, and nothing in it needs executors; {expectation}")


def choice_of_connect(given: Mapping[str, Any], options: QueryOptions) -> Choice:
    """Return where the epochs of a query of Spark Connect run: in the server's Python process, or on executors on request."""
    if options.execution == "executors" and any(name.lower() == "execution" for name in given):
        return Choice("executors", 'execution="executors"')
    return Choice("driver", "Spark Connect")


def memory_budget(options: QueryOptions) -> int:
    """Return how many bytes of state a query may have on the driver."""
    return options.driver_memory or memory_bytes() // 2


def state_bytes(options: QueryOptions, query_id: str) -> int:
    """Return the bytes of the state of a query, as it is in mapped files on this machine."""
    base = default_local_state_dir() if options.local_state_dir is None else Path(options.local_state_dir)
    return _bytes_below(base / query_id)


def _bytes_below(place: Path) -> int:
    return sum(
        os.stat(os.path.join(directory, name)).st_size  # noqa: PTH116, PTH118 - one of very many paths in a loop
        for directory, _, names in os.walk(place)
        for name in names
    )


def refuse_larger_state(place: Path, options: QueryOptions) -> None:
    """Refuse rows for a SQL session whose state is larger than its budget; what is committed stays."""
    held, budget = _bytes_below(place), memory_budget(options)
    if held > budget:
        raise StateError(
            f"the state of the session has {held:,} bytes, and may have {budget:,} (driver_memory). None of the rows counts. "
            "SET driver_memory to more, DROP views, or begin a session with SET default_hash_join = 'hybrid', which keeps rows "
            "on disk.",
            code="DRIVER_STATE_TOO_LARGE",
            held=held,
            limit=budget,
        )


def refuse_first_rows(size: int, options: QueryOptions, epoch: int) -> None:
    """Refuse the first rows of a query where they are larger than the budget of its state; nothing is applied."""
    budget = memory_budget(options)
    if size > budget:
        raise StateError(
            f"the first rows of the query, of epoch {epoch}, have {size:,} bytes, and on the driver its state may have "
            f"{budget:,} (driverMemory). Nothing was applied. Raise driverMemory, or start the query with "
            'execution="executors", a new checkpointLocation and a new output.',
            code="DRIVER_STATE_TOO_LARGE",
            epoch=epoch,
            held=size,
            limit=budget,
        )


def refuse_outgrown(held: int, options: QueryOptions, epoch: int) -> None:
    """Refuse to continue where the state is larger than its budget; what is committed stays."""
    budget = memory_budget(options)
    if held > budget:
        raise StateError(
            f"after epoch {epoch} the state of the query has {held:,} bytes, and on the driver it may have {budget:,} "
            "(driverMemory). Raise driverMemory, or start the query with a new checkpointLocation and a new output, and with "
            'default_hash_join="hybrid" and max_hot_bytes, which keeps rows on disk. Or raise it for one more run that ends '
            f"(availableNow), move the state with zset-join rescale {options.checkpoint_location} --execution executors, and "
            'start the query with execution="executors".',
            code="DRIVER_STATE_TOO_LARGE",
            epoch=epoch,
            held=held,
            limit=budget,
        )


# What is not known is not guessed. Known are the bytes of streams and baselines of local files, with a factor for compressed
# ones; nothing is known of other streams. Cost: one look at every file of a local directory.
_COMPRESSED = {".parquet": 4, ".orc": 4, ".gz": 8, ".zst": 8, ".snappy": 3, ".avro": 2}


@dataclass(frozen=True)
class Expectation:
    size: int | None
    reason: str

    def __str__(self) -> str:
        return self.reason if self.size is None else f"expected {self.size:,} bytes of state, {self.reason}"


def expected_state(streams: Mapping[str, SourceStream]) -> Expectation:
    """Return how large the state of a query is expected to be, whose streams are given by the names of its sources."""
    known: dict[str, int] = {}
    for name, stream in streams.items():
        frames = [stream.dataframe, *([] if stream.baseline is None else [stream.baseline])]
        sizes = [_files_size(paths) for frame in frames if (paths := reader_of(frame.sparkSession).paths(frame)) is not None]
        if sizes:
            known[name] = sum(sizes)
    unknown = [name for name in streams if name not in known]
    if not known:
        return Expectation(None, f"nothing is known of the size of {', '.join(unknown)}")
    rest = f"; nothing is known of {', '.join(unknown)}" if unknown else ""
    return Expectation(sum(known.values()), f"by the files of {', '.join(known)}{rest}")


def _files_size(paths: Iterable[str]) -> int:
    return sum(_weight(file) for path in paths for file in _files(path))


def _files(path: str) -> Iterable[Path]:
    url = urlparse(path)
    if url.scheme not in ("", "file"):
        return ()
    place = Path(unquote(url.path) if url.scheme else path)
    if any(sign in str(place) for sign in "*?["):
        matching = Path(place.anchor or ".").glob(str(place.relative_to(place.anchor)))
        return [inner for one in matching for inner in _files(str(one))]
    if place.is_dir():
        return [one for one in place.rglob("*") if one.is_file() and not one.name.startswith(("_", "."))]
    return [place] if place.is_file() else ()


def _weight(file: Path) -> int:
    factor = max((times for suffix, times in _COMPRESSED.items() if suffix in file.suffixes), default=1)
    return file.stat().st_size * factor
