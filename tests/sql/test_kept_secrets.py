"""Secrets in options: a directory keeps the name of a variable, never its value, and nothing shows one."""

from __future__ import annotations

import itertools
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from zset_join.core.errors import SqlError, StateError, ZsetJoinError
from zset_join.sql import Session, connect

HUSH = "hush-4711"
_JDBC = "'connector' = 'jdbc', 'url' = 'jdbc:postgresql://h/d', 'table-name' = 't', 'username' = 'me'"
_TABLE = f"CREATE TABLE crm (id INT, n STRING, PRIMARY KEY (id) NOT ENFORCED) WITH ({_JDBC}, 'password' = '{{}}')"
_KAFKA = "connector = 'kafka', topic = 't', properties.bootstrap.servers = 'h:1'"


@pytest.fixture(autouse=True)
def _own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Session, Path]]:
    place = tmp_path_factory.mktemp("kept")
    with connect(directory=place) as session:
        session.sql("CREATE TABLE t (k STRING)")
        yield session, place


def _refused(kept: tuple[Session, Path], text: str, dialect: str) -> str:
    session, place = kept
    with warnings.catch_warnings(action="always", record=True) as warned, pytest.raises(ZsetJoinError) as refused:
        session.sql(text, dialect=dialect)
    assert [file for file in place.rglob("*") if file.is_file() and HUSH.encode() in file.read_bytes()] == []
    assert HUSH not in f"{refused.value} {refused.value.facts} {[str(one.message) for one in warned]}"
    return str(refused.value.code)


def test_a_directory_keeps_the_name_of_the_variable_and_reads_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM_PASSWORD", "hush-1")
    with connect(directory=tmp_path / "d", dialect="flink") as session:
        session.sql(_TABLE.format("${ENV:CRM_PASSWORD}"))
        assert session.catalog.tables["crm"].options["password"] == "hush-1"
        assert "'password' = '${ENV:CRM_PASSWORD}'" in str(session.sql("SHOW CREATE TABLE crm"))
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and b"hush" in file.read_bytes()]
    monkeypatch.setenv("CRM_PASSWORD", "hush-2")
    with connect(directory=tmp_path / "d", dialect="flink") as session:
        assert session.catalog.tables["crm"].options["password"] == "hush-2"
    monkeypatch.delenv("CRM_PASSWORD")
    with (
        connect(directory=tmp_path / "d", dialect="flink") as session,
        pytest.raises(SqlError, match="CRM_PASSWORD") as refused,
    ):
        session.sql("SHOW TABLES")
    assert refused.value.code == "SECRET_MISSING"


def test_a_copied_directory_reads_no_variable_that_is_not_confirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM_PASSWORD", "hush")
    with connect(directory=tmp_path / "made", dialect="flink") as session:
        session.sql(_TABLE.format("${ENV:CRM_PASSWORD}"))
    shutil.copytree(tmp_path / "made", tmp_path / "given")
    with connect(directory=tmp_path / "given", allow_env=["OTHER"]) as session:
        for _ in range(2):
            with pytest.raises(StateError, match=r"--allow-env CRM_PASSWORD") as refused:
                session.sql("SHOW TABLES")
            assert (refused.value.code, refused.value.facts["names"]) == ("ENV_NOT_ALLOWED", ["CRM_PASSWORD"])
    with connect(directory=tmp_path / "given", allow_env=["CRM_PASSWORD"]) as session:
        assert session.catalog.tables["crm"].options["password"] == "hush"
        session.sql("CREATE TABLE mine (a INT)")
    with connect(directory=tmp_path / "given") as session:
        assert session.catalog.relations() == ["crm", "mine"]


def test_the_stamp_of_another_user_confirms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM_PASSWORD", "hush")
    with connect(directory=tmp_path / "made", dialect="flink") as session:
        session.sql(_TABLE.format("${ENV:CRM_PASSWORD}"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "victim"))
    with connect(directory=tmp_path / "made") as session, pytest.raises(StateError, match="ENV_NOT_ALLOWED"):
        session.sql("SHOW TABLES")


_NAMES = (
    "'password'",
    "password",
    '"password"',
    "'PassWord'",
    "properties.sasl.password",
    "'properties.ssl.key.pem'",
    "dbAccessToken",
)
_EQUALS = (" = ", "=", " /* of crm */ = ", " = -- of crm\n ")
_VALUES = (f"'{HUSH}'", f"'x ''{HUSH}'' password=\"\"'", f"'${{ENV:HOME}}{HUSH}'", f"'https://me:{HUSH}@crm/'")


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize("dialect", ["spark", "flink", "risingwave", "timeplus", "laminardb"])
def test_a_literal_secret_is_refused_in_a_directory_however_it_is_written(
    kept: tuple[Session, Path], dialect: str, name: str
) -> None:
    codes = {
        _refused(kept, f"CREATE SOURCE s (id INT) WITH ({_KAFKA}, {name}{equals}{value})", dialect)
        for equals, value in itertools.product(_EQUALS, _VALUES)
    }
    assert codes == {"SECRET_KEPT"}


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("spark", f"CREATE SINK s AS SELECT k FROM t WITH ({_KAFKA}, 'pass\\u0077ord' = '{HUSH}')"),
        ("spark", f"CREATE TABLE s (k STRING) WITH ('connector' = 'kafka', 'properties.a' = 'https://h/?api%5Fkey={HUSH}')"),
        ("timeplus", f"CREATE EXTERNAL STREAM s (k STRING) SETTINGS type = 'kafka', sasl_password = '{HUSH}'"),
        ("spark", f"ALTER TABLE t ADD COLUMN c INT WITH ('reread' = 'postgresql://me:{HUSH}@h/d:t')"),
        ("spark", f"CREATE SINK s FROM t WITH ({_KAFKA}, 'password' = '{HUSH}')"),
        ("spark", f"SET sasl.password = {HUSH.replace('-', '')}{HUSH!r}"),
        ("spark", f"SET 'sql-client.password' = '{HUSH}'"),
        ("flink", f"CREATE MATERIALIZED VIEW v AS SELECT * FROM t /*+ OPTIONS('properties.sasl.password'='{HUSH}') */"),
        ("flink", f"CREATE MATERIALIZED VIEW v AS SELECT /*+ LOOKUP('table'='t', 'token'='{HUSH}') */ * FROM t"),
        ("spark", f"CREATE TABLE c (k INT) USING jdbc OPTIONS (url 'jdbc:x', password '{HUSH}')"),
        ("spark", f"CREATE TABLE c (k INT) USING json OPTIONS (a.b '{HUSH}', '{HUSH}')"),
        ("spark", f"ALTER TABLE t SET ('password' = '{HUSH}')"),
        ("risingwave", f"CREATE SOURCE s (k INT) WITH ({_KAFKA}, password = E'{HUSH}')"),
        ("risingwave", f"CREATE SOURCE s (k INT) WITH ({_KAFKA}, password = $${HUSH}$$)"),
        ("risingwave", f"CREATE SECRET s WITH (backend = 'meta') AS '{HUSH}'"),
        ("risingwave", f"CREATE SOURCE s (k INT) WITH ({_KAFKA}) FORMAT PLAIN ENCODE AVRO (schema.registry = 'http://{HUSH}')"),
        ("spark", f"CREATE TABLE c ('password' = '{HUSH}')"),
        ("spark", f"CREATE TABLE c (k INT) WITH (password = '{HUSH}"),
        ("spark", f"CREATE TABLE c (k STRING COMMENT 'it's') WITH (password = '{HUSH}')"),
        ("spark", f"CREATE TABLE c (k STRING) WITH ('connector' = 'jdbc', pasword = '{HUSH}')"),
        ("spark", f"CREATE TABLE c (k STRING) WITH ('connector' = 'jdbc') -- {HUSH}"),
        ("spark", f"CREATE TABLE c (k STRING) WITH (/* {HUSH} */ 'connector' 'jdbc')"),
    ],
)
def test_no_error_about_a_statement_shows_a_value_of_an_option(kept: tuple[Session, Path], dialect: str, text: str) -> None:
    assert _refused(kept, text, dialect)
    with connect(dialect=dialect) as session, warnings.catch_warnings(action="always", record=True) as warned:
        session.sql("CREATE TABLE t (k STRING)", dialect="spark")
        shown = ""
        try:
            shown = f"{session.sql(text)} {session.catalog.tables} {[one.query.sql for one in session.running]}"
        except ZsetJoinError as error:
            shown = f"{error} {error.facts}"
        assert HUSH not in f"{shown} {[str(one.message) for one in warned]}"


def test_a_comment_among_options_is_not_kept(tmp_path: Path) -> None:
    text = f"CREATE TABLE g (f0 INT) WITH ('connector' = 'datagen', -- was {HUSH}\n 'number-of-rows' /* {HUSH} */ = '1')"
    for _ in range(2):
        with connect(directory=tmp_path) as session:
            session.sql(text)
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and HUSH.encode() in file.read_bytes()]


def test_outside_of_directories_a_literal_secret_is_taken_and_never_shown() -> None:
    with connect(dialect="flink") as session:
        session.sql(_TABLE.format(HUSH))
        table = session.catalog.tables["crm"]
        assert (str(table.options["password"]), table.lookup.password.value()) == (HUSH, HUSH)  # type: ignore[union-attr]
        assert "'password' = '***'" in str(session.sql("SHOW CREATE TABLE crm"))
        assert HUSH not in f"{table!r} {table.options['password']:s} {session.sql('DESCRIBE crm')}"


@pytest.mark.parametrize(
    "options",
    [
        "'properties.sasl.jaas.config' = 'Login required username=\"me\" password=\"${ENV:HOME}\";'",
        "'properties.sasl.mechanism' = 'PLAIN', 'properties.ssl.ca.location' = '/ca'",
        "'properties.sasl.oauthbearer.token.endpoint.url' = 'https://me@crm:80/?mode=require'",
        "'properties.sasl.password' = ''",
        "'properties.url' = 'https://me:${ENV:HOME}@crm/?api_key=${ENV:HOME}'",
    ],
)
def test_what_holds_no_literal_secret_is_kept(tmp_path: Path, options: str) -> None:
    with connect(directory=tmp_path) as session:
        session.sql(f"CREATE SOURCE s (id INT) WITH ({_KAFKA}, {options})")
        assert session.catalog.relations() == ["s"]


def test_jaas_with_a_literal_password_is_refused(kept: tuple[Session, Path]) -> None:
    jaas = f"'properties.sasl.jaas.config' = 'Login required username=\"${{ENV:HOME}}\" password=\"{HUSH}\";'"
    assert _refused(kept, f"CREATE SOURCE s (id INT) WITH ({_KAFKA}, {jaas})", "flink") == "SECRET_KEPT"
