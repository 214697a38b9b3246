"""The console of a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from zset_join.core.errors import OptionError
from zset_join.sql import connect


def test_a_session_serves_the_page_of_the_pipeline_that_answers_a_query(tmp_path: Path) -> None:
    with connect(directory=tmp_path) as session:
        with pytest.raises(OptionError, match="expected the name"):
            session.console()
        session.sql("CREATE TABLE orders (id INT, total INT, PRIMARY KEY (id)); CREATE TABLE other (id INT, PRIMARY KEY (id))")
        session.sql("SELECT total, count(*) AS n FROM orders GROUP BY total").start(name="totals")
        with session.console() as only:
            assert only.port > 0
        session.sql("SELECT count(*) AS n FROM other").start(name="others")
        session.sql("INSERT INTO orders VALUES (1, 30)")
        with session.console("totals") as console:
            assert console._watched.rows("totals", {})["rows"] == [[30, 1]]
