"""Passwords and tokens: named, read where they are used, and never shown.

    Secret.env("CRM_PASSWORD")              read from the environment of the process that connects
    Secret.file("/run/secrets/crm")         read from a file there
    Secret.given("...")                     held in memory by the program that made it

The law: `repr`, `str`, JSON and errors never show the value. What is written down is where it comes from; one that was `given`
is written as just that, so a checkpoint cannot connect without the program. A plan that is read from a directory chooses where
its secrets are sent, so theirs are read only inside `Secret.allowed`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from zset_join.core.errors import OptionError, StateError
from zset_join.core.hidden_settings import holds_password, holds_user

__all__ = [
    "Secret",
    "as_secret",
    "holds_credentials",
    "refuse_credentials",
    "secrets_of",
    "without_secrets",
]

_allowed: ContextVar[Collection[str] | None] = ContextVar("allowed", default=())


class Secret:
    """Name a password or token.

    Args:
        origin: `env`, `file` or `given`.
        place: name of the variable, or path.
        value: the given value.
        is_allowed: whether it may be read.

    >>> Secret.given("hunter2"), Secret.env("CRM_PASSWORD")
    (Secret(given), Secret(env CRM_PASSWORD))
    """

    __slots__ = ("_value", "is_allowed", "origin", "place")

    def __init__(self, origin: str, place: str = "", value: str | None = None, *, is_allowed: bool = True) -> None:
        self.is_allowed = is_allowed
        self.origin = origin
        self.place = place
        self._value = value

    @classmethod
    def env(cls, name: str) -> Secret:
        """Name a variable of the environment."""
        return cls("env", name)

    @classmethod
    def file(cls, path: str) -> Secret:
        """Name a file; blanks and line ends around its text are omitted."""
        return cls("file", path)

    @classmethod
    def given(cls, value: str) -> Secret:
        """Return a secret with a value; prefer `env` or `file`, which outlive the program."""
        return cls("given", "", value)

    @staticmethod
    @contextmanager
    def allowed(places: Collection[str] | None) -> Iterator[None]:
        """Let plans that are read from a directory in this block use the variables and files of these names; None: all."""
        token = _allowed.set(places)
        try:
            yield
        finally:
            _allowed.reset(token)

    def value(self) -> str:
        """Return the value.

        Raises:
            OptionError: the variable or file does not exist.
            StateError: `ENV_NOT_ALLOWED`: the plan of a directory names it, and this process has not confirmed it.
        """
        self.check_allowed()
        if self.origin == "env" and self.place in os.environ:
            return os.environ[self.place]
        if self.origin == "file" and Path(self.place).is_file():
            return Path(self.place).read_text(encoding="utf-8").strip()
        if self.origin == "given" and self._value is not None:
            return self._value
        where = {"env": f"the environment variable {self.place}", "file": f"the file {self.place}"}.get(self.origin)
        raise OptionError(
            f"a secret is missing: {where} does not exist in the process that connects. Set it for the driver and all workers."
            if where
            else "a secret was given in memory and is lost: it is never stored. Give it again, or name one that stays: "
            "Secret.env or Secret.file.",
            code="SECRET_MISSING",
            origin=self.origin,
            place=self.place,
        )

    def check_allowed(self) -> None:
        """Refuse a secret that only the plan in a directory names."""
        if not self.is_allowed:
            raise StateError(
                f"the plan in a directory looks rows up with a secret of this process, {self!r}, and chooses where it is sent. "
                f"Change to that query with evolve(), given the query itself; or read the plan (zset-join plan) and confirm "
                f"the name around the call: with Secret.allowed([{self.place!r}]).",
                code="ENV_NOT_ALLOWED",
                names=[self.place],
            )

    def to_json(self) -> dict[str, str]:
        """Return its origin."""
        return {"origin": self.origin, "place": self.place}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Secret:
        """Build from the result of `to_json`; a given secret has no value afterwards, others as `allowed` states."""
        names = _allowed.get()
        return cls(fields["origin"], fields["place"], is_allowed=names is None or fields["place"] in {"", *names})

    def __repr__(self) -> str:
        return f"Secret({self.origin}{' ' if self.place else ''}{self.place})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and (self.origin, self.place, self._value) == (other.origin, other.place, other._value)

    def __hash__(self) -> int:
        return hash((self.origin, self.place))


def as_secret(value: Secret | str | None) -> Secret | None:
    """Return a secret for what a user wrote: text is taken as a value that was given."""
    return Secret.given(str(value)) if isinstance(value, str) else value


def holds_credentials(address: str) -> bool:
    """Return whether a URL, a host or a connection string has a user before an `@`, or names a password or token.

    >>> holds_credentials("https://me:hush@crm/"), holds_credentials("https://crm/?q=1&api_key=hush")
    (True, True)
    >>> holds_credentials("dbname=crm password=hush"), holds_credentials("https://crm/people/{id}?sort=name")
    (True, False)
    """
    return holds_user(address) or holds_password(address)


def refuse_credentials(source: str, *addresses: str) -> None:
    """Refuse a description that holds credentials where they would be shown."""
    if any(holds_credentials(address) for address in addresses):
        raise OptionError(
            f'the address of the lookup source "{source}" holds credentials, which would be shown; give them as password or '
            'token: Secret.env(...), or as headers={"X-Api-Key": Secret.env(...)}.',
            code="SECRET_IN_URL",
            source=source,
        )


def secrets_of(source: object) -> list[Secret]:
    """Return the secrets that a source was described with, those in its mappings among them."""
    given = getattr(source, "__dict__", {}).values()
    inner = [value for mapping in given if isinstance(mapping, Mapping) for value in mapping.values()]
    return [value for value in [*given, *inner] if isinstance(value, Secret)]


def without_secrets(text: str, *secrets: Secret | None) -> str:
    """Return a text that contains no secret: neither as it is, nor escaped, nor as a URL has it.

    >>> without_secrets("no entry for hunter2", Secret.given("hunter2"))
    'no entry for ***'
    >>> without_secrets("GET /?key=a%26b", Secret.given("a&b"))
    'GET /?key=***'
    """
    for secret in secrets:
        if secret is not None:
            try:
                value = secret.value()
            except (OptionError, StateError):
                continue
            escaped = repr(value)[1:-1]
            for shown in sorted(
                {value, value.strip(), escaped, quote(value, safe=""), quote_plus(value)}, key=len, reverse=True
            ):
                if shown:
                    text = text.replace(shown, "***")
    return text
