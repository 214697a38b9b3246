"""Settings behind the `?` of a URI, which may be secrets, are omitted from every text that people see.

>>> shown("the checkpoint s3://bucket/cp?aws_secret_access_key=hunter2, of 'abfss://box@host/out?sas_token=sv%3D1'")
"the checkpoint s3://bucket/cp?..., of 'abfss://box@host/out?...'"
>>> shown("s3://bucket/my dir/it's?token=a'b&c=d, then https://host/rates?day=1, is it? 's3://b/p?a=1','s3://b/q?a=2'")
"s3://bucket/my dir/it's?..., then https://host/rates?day=1, is it? 's3://b/p?...','s3://b/q?...'"
>>> shown_value({"outputs": ["s3://bucket/cp?token=hunter2"]})
{'outputs': ['s3://bucket/cp?...']}
>>> shown("GET http://host/rates?day=1 is no secret of a store; so is a path /data/a?b")
'GET http://host/rates?day=1 is no secret of a store; so is a path /data/a?b'
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["shown", "shown_value"]

_PLACE = r"\b(?!https?:)[A-Za-z][A-Za-z0-9+.-]*://(?:(?!\w://)[^?\n])*"
_SETTING = r"(?:[^\s'\"]|['\"](?=[\w&=%+/-]))*[^\s'\".,;:)\]]"
_SETTINGS = re.compile(rf"({_PLACE})\?{_SETTING}", re.IGNORECASE)
"""A place may have spaces and quotes in it, but no other URI; a quote is of the settings where they continue behind it."""


def shown(text: str) -> str:
    """Return a text with `...` in place of the settings of each URI in it; those of HTTP stay, they are no store's.

    Args:
        text: any, such as a message or a location.
    """
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
