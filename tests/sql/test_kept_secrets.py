"""Passwords of connectors: a directory keeps the name of a variable, never its value."""

from __future__ import annotations

from pathlib import Path

import pytest

from zset_join.core.errors import SqlError
from zset_join.sql import connect
from zset_join.sql.parse.secrets import refuse_kept_credentials
from zset_join.sql_expressions.dialects import split

_TABLE = (
    "CREATE TABLE crm (id INT, n STRING, PRIMARY KEY (id) NOT ENFORCED) WITH ('connector' = 'jdbc', "
    "'url' = 'jdbc:postgresql://h/d', 'table-name' = 't', 'username' = 'me', 'password' = '{}')"
)


def test_a_directory_keeps_the_name_of_the_variable_and_reads_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM_PASSWORD", "hush-1")
    with connect(directory=tmp_path, dialect="flink") as session:
        session.sql(_TABLE.format("${ENV:CRM_PASSWORD}"))
        assert session.catalog.tables["crm"].options["password"] == "hush-1"
        assert "'password' = '${ENV:CRM_PASSWORD}'" in str(session.sql("SHOW CREATE TABLE crm"))
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and b"hush" in file.read_bytes()]
    monkeypatch.setenv("CRM_PASSWORD", "hush-2")
    with connect(directory=tmp_path, dialect="flink") as session:
        assert session.catalog.tables["crm"].options["password"] == "hush-2"
    monkeypatch.delenv("CRM_PASSWORD")
    with connect(directory=tmp_path, dialect="flink") as session, pytest.raises(SqlError, match="CRM_PASSWORD") as refused:
        session.sql("SHOW TABLES")
    assert refused.value.code == "SECRET_MISSING"


def test_a_literal_password_is_refused_in_a_directory_alone(tmp_path: Path) -> None:
    with connect(directory=tmp_path, dialect="flink") as session:
        with pytest.raises(SqlError) as refused:
            session.sql(_TABLE.format("hush"))
        assert (refused.value.code, "hush" in str(refused.value)) == ("SECRET_KEPT", False)
        assert session.catalog.relations() == []
    with connect(dialect="flink") as session:
        session.sql(_TABLE.format("hush"))


@pytest.mark.parametrize(
    ("options", "is_refused"),
    [
        ("'properties.sasl.jaas.config' = 'Login required password=\"hush\";'", True),
        ("'properties.sasl.jaas.config' = 'Login required password=\"${ENV:P}\";'", False),
        ("'properties.sasl.mechanism' = 'PLAIN', 'properties.ssl.ca.location' = '/ca'", False),
        ("'url' = 'https://me:hush@crm/'", True),
        ("'url' = 'https://me:${ENV:P}@crm/'", False),
        ("'url' = 'https://me@crm/?sslmode=require'", False),
        ("'url' = 'https://crm/?api_key=hush'", True),
        ("'url' = 'https://crm/?api_key=${ENV:P}'", False),
    ],
)
def test_what_counts_as_a_password(options: str, is_refused: bool) -> None:
    (statement,) = split(f"CREATE TABLE t (a INT) WITH ({options})", dialect="flink")
    if is_refused:
        with pytest.raises(SqlError, match="SECRET_KEPT"):
            refuse_kept_credentials(statement)
    else:
        refuse_kept_credentials(statement)
