from __future__ import annotations

import json

import pytest

from zset_join.storage.trusted_files import UnknownFormatError, seal, unseal

BODY = {"epoch": 7, "names": ["a", "é"], "nothing": None}
DATA = seal(BODY, version=2, name="commits/7")


def test_what_was_sealed_comes_back() -> None:
    assert unseal(DATA, version=2, name="commits/7") == BODY


def test_a_sealed_file_is_ordinary_json() -> None:
    assert json.loads(DATA)["body"] == BODY


def accepts(data: bytes) -> bool:
    try:
        return unseal(data, version=2, name="commits/7") is not None
    except ValueError:
        return False


def test_every_changed_bit_is_noticed() -> None:
    changed = [DATA[:at] + bytes([DATA[at] ^ (1 << bit)]) + DATA[at + 1 :] for at in range(len(DATA)) for bit in range(8)]

    assert [data for data in changed if accepts(data)] == []


def test_every_cut_and_every_added_byte_is_noticed() -> None:
    cut = [DATA[:at] for at in range(len(DATA))]
    added = [b"[" * 9_000, DATA + b" ", DATA + b"\n", b" " + DATA, DATA.replace(b"7", b"7 ", 1), DATA + DATA]

    assert [data for data in cut + added if accepts(data)] == []


def test_the_file_of_another_name_is_noticed() -> None:
    with pytest.raises(ValueError, match="checksum"):
        unseal(DATA, version=2, name="commits/8")


@pytest.mark.parametrize("data", [seal(BODY, version=3, name="commits/7"), b'{"format": 1, "query_id": "q"}'])
def test_another_format_differs_from_damage(data: bytes) -> None:
    with pytest.raises(UnknownFormatError):
        unseal(data, version=2, name="commits/7")


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"null", b'{"format":"2"}', b"\xff\xfe"])
def test_what_is_no_such_file_at_all_is_noticed(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"cut off or damaged|names no format"):
        unseal(data, version=2, name="commits/7")
