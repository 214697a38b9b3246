"""Settings behind the `?` of a URI, which may be secrets, are omitted from every text that people see.

>>> shown("the checkpoint s3://bucket/cp?aws_secret_access_key=hunter2, of 'abfss://box@host/out?sas_token=sv%3D1'")
"the checkpoint s3://bucket/cp?..., of 'abfss://box@host/out?...'"
>>> shown("s3://bucket/my dir/it's?token=a'b&c=d, then https://host/rates?day=1, is it? 's3://b/p?a=1','s3://b/q?a=2'")
"s3://bucket/my dir/it's?..., then https://host/rates?day=1, is it? 's3://b/p?...','s3://b/q?...'"
>>> shown_value({"outputs": ["s3://bucket/cp?token=hunter2"]})
{'outputs': ['s3://bucket/cp?...']}
>>> shown("GET http://host/rates?day=1 is no secret of a store; so is a path /data/a?b")
'GET http://host/rates?day=1 is no secret of a store; so is a path /data/a?b'

Secrets in options are found by their names, and by what their values hold.

The law: one table for SQL, lookups and outputs. A name is secret where a word of it is one of `_WORDS`, or its letters contain
one of `_PARTS`, unless it ends with a word that describes the secret, as `token.endpoint.url` does. A value holds a secret
where it is an address with a password before its `@`, or has a pair `name=value` of a secret name, as the query of a URL, a
connection string or JAAS has.

>>> [is_secret_name(name) for name in ("properties.sasl.password", "X-Api-Key", "sslKeyPem", "table-name", "author", "monkey")]
[True, True, True, False, False, False]
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

__all__ = ["STARS", "HiddenText", "holds_password", "holds_user", "is_secret_name", "shown", "shown_value"]

_PLACE = r"\b(?!https?:)[A-Za-z][A-Za-z0-9+.-]*://(?:(?!\w://)[^?\n])*"
_SETTING = r"(?:[^\s'\"]|['\"](?=[\w&=%+/-]))*[^\s'\".,;:)\]]"
_SETTINGS = re.compile(rf"({_PLACE})\?{_SETTING}", re.IGNORECASE)
"""A place may have spaces and quotes in it, but no other URI; a quote is of the settings where they continue behind it."""


def shown(text: str) -> str:
    """Return a text with `...` in place of the settings of each URI in it; those of HTTP stay, they are no store's."""
    return _SETTINGS.sub(r"\1?...", text) if "?" in text else text


def shown_value(value: Any) -> Any:
    """Return a fact of an error as it is shown: of a text, or of texts in a list, a tuple or a dictionary, see `shown`."""
    if isinstance(value, str):
        return shown(value)
    if type(value) in (list, tuple):
        return type(value)(shown_value(one) for one in value)
    if type(value) is dict:
        return {shown_value(name): shown_value(one) for name, one in value.items()}
    return value


# ---------------------------------------------------------------- secrets in options

STARS = "***"
_WORDS = frozenset({"auth", "authorization", "cookie", "pass", "pwd", "sas", "sig", "signature"})
_PARTS = re.compile(
    r"passwo?r?d|passphrase|secret|token|credential|jaas|keystorekey|keypem|"
    r"(?:api|access|account|app|encryption|private|shared|signing|subscription)key"
)
_DESCRIBING = frozenset({"algorithm", "class", "endpoint", "file", "location", "mechanism", "ms", "path", "type", "uri", "url"})
_WORD = re.compile(r"[a-z0-9]+|[A-Z]+(?![a-z])|[A-Z][a-z0-9]*")
_USER = re.compile(r"//[^/?#\s]*@")
_PASSWORD = re.compile(r"//[^/?#:@\s]*:(?!\d+(?:[/?#]|$))[^?#\s]+@|^jdbc:oracle:\w+:[^@/]*/[^@]+@", re.IGNORECASE)
_PAIR = re.compile(r"""([\w.~-]+)(?:["']?\s*=|["']\s*:)\s*(?:["']\s*)?[^\s"'&;,{}]""")


def is_secret_name(name: str) -> bool:
    """Return whether an option, header or parameter of this name is a secret."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _DESCRIBING:
        return False
    return not _WORDS.isdisjoint(words) or _PARTS.search("".join(words)) is not None


def holds_password(value: str) -> bool:
    """Return whether a value has a password in an address, or a pair of a secret name.

    >>> [holds_password(value) for value in ("https://me:hush@crm/", "https://crm/?api%5Fkey=hush", "dbname=d password='hush'")]
    [True, True, True]
    >>> [holds_password(value) for value in ("https://me@token:80/", "https://crm/?key=1", 'Login required password="";')]
    [False, False, False]
    """
    return any(
        _PASSWORD.search(text) is not None or any(is_secret_name(name) for name in _PAIR.findall(text))
        for text in {value, unquote(value)}
    )


def holds_user(address: str) -> bool:
    """Return whether an address has a user before an `@`, with or without a password."""
    return _USER.search(address) is not None


class HiddenText(str):
    """The value of an option that is a secret, or comes from the environment; its `repr` is what the statement has."""

    __slots__ = ("is_secret", "written")

    written: str
    is_secret: bool

    @classmethod
    def of(cls, value: str, written: str, *, is_secret: bool) -> HiddenText:
        made = cls(value)
        made.written, made.is_secret = written, is_secret
        return made

    def __repr__(self) -> str:
        return repr(self.written)

    def __format__(self, specification: str) -> str:
        return format(STARS if self.is_secret else str(self), specification)
