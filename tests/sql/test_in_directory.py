"""Statements of a file that is run again in its directory insert nothing twice, into tables nor outside."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from zset_join.core.errors import SinkError
from zset_join.sql import connect
from zset_join.sql.commands import run_file

PIPELINE = """
CREATE TABLE a (id INT);
INSERT INTO a VALUES (1), (2);
CREATE TABLE files (id INT) WITH ('connector' = 'filesystem', 'path' = '{place}/files', 'format' = 'csv');
CREATE TABLE kept (id INT, PRIMARY KEY (id)) WITH ('connector' = 'duckdb', 'path' = '{place}/kept.duckdb', 'table-name' = 'kept');
INSERT INTO files SELECT id FROM table(a);
INSERT INTO kept SELECT id FROM table(a);
"""


def test_a_query_of_stored_rows_is_written_outside_once(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.sql"
    file.write_text(PIPELINE.format(place=tmp_path))

    for _ in range(3):
        assert run_file(str(file), engine="local", dialect="timeplus", once=True, directory=str(tmp_path / "state")) == 0

    written = [path.read_text().split() for path in sorted((tmp_path / "files").glob("*.csv"))]
    assert written == [['"id"', "1", "2"]]
    with duckdb.connect(str(tmp_path / "kept.duckdb"), read_only=True) as database:
        assert database.execute("SELECT id FROM kept ORDER BY id").fetchall() == [(1,), (2,)]


def test_another_directory_does_not_write_over_what_is_there(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.sql"
    file.write_text(PIPELINE.format(place=tmp_path))
    run_file(str(file), engine="local", dialect="timeplus", once=True, directory=str(tmp_path / "one"))

    with pytest.raises(SinkError) as refused:
        run_file(str(file), engine="local", dialect="timeplus", once=True, directory=str(tmp_path / "other"))

    assert refused.value.code == "SINK_QUERY_ID"


def test_the_id_of_a_statement_stays_and_is_its_own(tmp_path: Path) -> None:
    ids = []
    for _ in range(2):
        with connect(directory=tmp_path) as session:
            assert session.writer_id() is None
            for name in ("one", "other"):
                with session.once(name):
                    ids.append(session.writer_id())

    assert ids[:2] == ids[2:]
    assert len(set(ids)) == 2
