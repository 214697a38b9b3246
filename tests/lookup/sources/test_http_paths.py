"""Keys in URLs: for any value, the template's own resource is requested, or none."""

from __future__ import annotations

from itertools import product
from urllib.parse import unquote, urlsplit

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zset_join.lookup.sources.http import UnnameableKeyError, url_of_key

_SPECIAL = st.lists(
    st.sampled_from([".", "..", "/", "\\", "%2e", "%2E", "%2f", "%252e", "%5c", "?", "#", ";", "&", "=", "@", ":", " ", "\0"]),
    max_size=5,
).map("".join)
_VALUES = _SPECIAL | st.text(max_size=6)
_TEMPLATES = (
    "http://crm/a/{x}",
    "http://crm/a/{x}/b/{y}",
    "http://crm/a/{x}{y}",
    "http://crm/a/{x}.json?y={y}#",
    "http://crm/{x}",
)


def _resolved(path: str) -> list[str]:
    """Return the segments that a server may arrive at which decodes all it can and drops parameters and dots."""
    for _ in range(9):
        path = unquote(path)
    kept: list[str] = []
    for part in path.replace("\\", "/").split("/")[1:]:
        name = part.partition(";")[0].strip()
        if name == "..":
            kept = kept[:-1]
        elif name != ".":
            kept.append(name)
    return kept


@given(template=st.sampled_from(_TEMPLATES), x=_VALUES, y=_VALUES)
@example(template=_TEMPLATES[0], x="..", y="")
@example(template=_TEMPLATES[2], x=".", y=".")
@example(template=_TEMPLATES[0], x="%252e%252e", y="")
@example(template=_TEMPLATES[0], x="a/../b", y="")
@example(template=_TEMPLATES[0], x="..;v=1", y="")
def test_the_request_of_a_key_stays_below_the_fixed_part_of_its_template(template: str, x: str, y: str) -> None:
    try:
        url = httpx.URL(url_of_key(template, {"x": x, "y": y}))
    except UnnameableKeyError:
        return
    fixed = urlsplit(template).path.split("/")
    assert url.host == "crm"
    sent = url.raw_path.decode()
    segments = sent.partition("?")[0].split("/")
    filled = [text.replace("{x}", x).replace("{y}", y) for text in fixed]
    assert [unquote(segment) for segment in segments] == filled, "every segment is read back as what was put in"
    assert all(segments[1:]), "no segment is empty"
    arrived = _resolved(sent.partition("?")[0])
    assert ".." not in arrived
    assert len(arrived) >= len(fixed) - 1, "no dots took a segment away"


_ORDINARY = ("7", "EU/17", "a b", "x?y=1#z", "100%", "a.b", "...", ".hidden", "v..w", "\r\nX: y", "\u2028", "Zo\u00eb", "-1")


@pytest.mark.parametrize(("template", "value"), list(product(_TEMPLATES[:2], _ORDINARY)))
def test_ordinary_values_are_requested(template: str, value: str) -> None:
    assert unquote(url_of_key(template, {"x": value, "y": "1"})) == template.replace("{x}", value).replace("{y}", "1")


def test_an_empty_value_in_the_query_is_refused() -> None:
    with pytest.raises(UnnameableKeyError, match="would request everything"):
        url_of_key("http://crm/a?id={x}", {"x": ""})
