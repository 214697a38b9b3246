"""Passwords and tokens: named, read where they are used, and never shown.

    Secret.env("CRM_PASSWORD")              read from the environment of the process that connects
    Secret.file("/run/secrets/crm")         read from a file there
    Secret.given("...")                     held in memory by the program that made it

The law: `repr`, `str`, JSON and errors never show the value. What is written down is where it comes from; one that was `given`
is written as just that, so a checkpoint cannot connect without the program.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zset_join.errors import OptionError

__all__ = ["Secret", "as_secret", "without_secrets"]


class Secret:
    """Name a password or token.

    Args:
        origin: `env`, `file` or `given`.
        place: name of the variable, or path.
        value: what was given.

    >>> Secret.given("hunter2"), Secret.env("CRM_PASSWORD")
    (Secret(given), Secret(env CRM_PASSWORD))
    """

    __slots__ = ("_value", "origin", "place")

    def __init__(self, origin: str, place: str = "", value: str | None = None) -> None:
        self.origin = origin
        self.place = place
        self._value = value

    @classmethod
    def env(cls, name: str) -> Secret:
        """Name a variable of the environment."""
        return cls("env", name)

    @classmethod
    def file(cls, path: str) -> Secret:
        """Name a file; blanks and line ends around its text are left out."""
        return cls("file", path)

    @classmethod
    def given(cls, value: str) -> Secret:
        """Hold a value; prefer `env` or `file`, which outlive the program."""
        return cls("given", "", value)

    def value(self) -> str:
        """Return the value.

        Raises:
            OptionError: it is not where it should be.
        """
        if self.origin == "env" and self.place in os.environ:
            return os.environ[self.place]
        if self.origin == "file" and Path(self.place).is_file():
            return Path(self.place).read_text(encoding="utf-8").strip()
        if self.origin == "given" and self._value is not None:
            return self._value
        where = {"env": f"the environment variable {self.place}", "file": f"the file {self.place}"}.get(self.origin)
        raise OptionError(
            f"a secret is missing: {where} is not there in the process that connects. Set it for the driver and all workers."
            if where
            else "a secret was given in memory and is gone: it is never written down. Give it again, or name one that stays: "
            "Secret.env or Secret.file.",
            code="SECRET_MISSING",
            origin=self.origin,
            place=self.place,
        )

    def to_json(self) -> dict[str, str]:
        """Return where it comes from."""
        return {"origin": self.origin, "place": self.place}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Secret:
        """Build from what `to_json` gave; one that was given has no value any more."""
        return cls(found["origin"], found["place"])

    def __repr__(self) -> str:
        return f"Secret({self.origin}{' ' if self.place else ''}{self.place})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and (self.origin, self.place, self._value) == (other.origin, other.place, other._value)

    def __hash__(self) -> int:
        return hash((self.origin, self.place))


def as_secret(value: Secret | str | None) -> Secret | None:
    """Return a secret for what a user wrote: text is taken as a value that was given."""
    return Secret.given(value) if isinstance(value, str) else value


def without_secrets(text: str, *secrets: Secret | None) -> str:
    """Return a text in which no secret stands.

    >>> without_secrets("no entry for hunter2", Secret.given("hunter2"))
    'no entry for ***'
    """
    for secret in secrets:
        if secret is not None:
            try:
                value = secret.value()
            except OptionError:
                continue
            if value:
                text = text.replace(value, "***")
    return text
