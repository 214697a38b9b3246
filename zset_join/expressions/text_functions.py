"""Functions of strings beyond those of `function_values`: padding, searching, replacing, patterns, digests.

Patterns are RE2's: what Java's patterns have beyond it (looking around, references back) is refused when the plan is made.
What only Python computes is called once for each distinct string.

Edge cases, all as in Spark: a replacement of the empty string changes nothing; a pattern that is not found gives ''; the first
character is 1; `split_part` gives '' behind the last part.

Known limits: patterns, widths, digests and what is replaced are literals.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from zset_join.core.errors import PlanError
from zset_join.expressions.computed import (
    NO_FAULTS,
    Computed,
    Function,
    Types,
    declared,
    joint_length,
    literal_value,
    mismatch,
    of_texts,
    spread,
    strings_only,
    texts_of,
    translated,
    wants_literal,
)
from zset_join.expressions.tree import Call
from zset_join.expressions.type_rules import kind_of
from zset_join.expressions.vectors import Vector

__all__ = ["soundex"]

_STRING = pa.large_string()
_DIGESTS = {0: "sha256", 224: "sha224", 256: "sha256", 384: "sha384", 512: "sha512"}
_MOST_REPEATED = 10_000


def check_pattern(call: Call, types: Types, pattern: str) -> None:
    """Refuse a pattern that cannot be searched for."""
    try:
        pc.match_substring_regex(pa.array([""], _STRING), pattern)
    except pa.ArrowException as error:
        raise mismatch(call, types, f"a pattern of RE2 ({error})", "Write it without looking around and back.") from error


def _strings_and(*places: int, result: pa.DataType = _STRING) -> Callable[[Call, Types], pa.DataType]:
    """Admit strings, of which those at some places are literals."""

    def rule(call: Call, types: Types) -> pa.DataType:
        strings_only(call, types)
        for place in places:
            wants_literal(call, types, place, str, "a literal string")
        return result

    return rule


def _pattern_rule(call: Call, types: Types) -> pa.DataType:
    kinds = types[:-1] if call.operation == "regexp_extract" else types
    strings_only(call, kinds)
    pattern = wants_literal(call, types, 1, str, "a pattern that is a literal")
    check_pattern(call, types, pattern)
    if call.operation == "regexp_like":
        return pa.bool_()
    if call.operation == "regexp_extract":
        group = wants_literal(call, types, 2, int, "the number of a group")
        if not 0 <= group <= re.compile(_named_groups(pattern)[0]).groups - 1:
            raise mismatch(call, types, "the number of a group of the pattern", "Put the group in brackets.")
    else:
        wants_literal(call, types, 2, str, "a replacement that is a literal")
        _replaced(pa.array([], _STRING), pattern, str(literal_value(call.operands[2])))
    return _STRING


def _width_rule(call: Call, types: Types) -> pa.DataType:
    strings_only(call, [types[0], *types[2:]])
    width = wants_literal(call, types, 1, int, "a literal number")
    if width > _MOST_REPEATED:
        raise mismatch(call, types, f"at most {_MOST_REPEATED}", "Make longer texts where they are shown.")
    if len(types) == 3:
        wants_literal(call, types, 2, str, "a literal to pad with")
    return _STRING


def _digest_rule(call: Call, types: Types) -> pa.DataType:
    if any(kind_of(kind) not in {"string", "binary", "null"} for kind in types[:1]):
        raise mismatch(call, types, "a string or a binary", 'Cast with .cast("string").')
    if call.operation == "sha2" and wants_literal(call, types, 1, int, "0, 224, 256, 384 or 512") not in _DIGESTS:
        raise mismatch(call, types, "0, 224, 256, 384 or 512", "Write the number of bits.")
    return _STRING


def _part_rule(call: Call, types: Types) -> pa.DataType:
    strings_only(call, types[:2])
    wants_literal(call, types, 1, str, "a delimiter that is a literal")
    if wants_literal(call, types, 2, int, "the number of a part") == 0:
        raise mismatch(call, types, "the number of a part, the first is 1", "Count from 1, or from the end with -1.")
    return _STRING


def _side_rule(call: Call, types: Types) -> pa.DataType:
    strings_only(call, types)
    wants_literal(call, types, 1, str, "characters that are a literal")
    if literal_value(call.operands[2]) not in {"both", "leading", "trailing"}:
        raise mismatch(call, types, "both, leading or trailing", "Write one of them.")
    return _STRING


def _octets_rule(call: Call, types: Types) -> pa.DataType:
    if kind_of(types[0]) not in {"string", "binary", "null"}:
        raise mismatch(call, types, "a string or a binary", 'Cast with .cast("string").')
    return pa.int32()


def _each(
    make: Callable[[Call], Callable[[str], Any]], kind: pa.DataType = _STRING
) -> Callable[[Call, Sequence[Vector], pa.DataType], Computed]:
    """Compute a function of the first operand, made once from the literals behind it."""

    def value(call: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
        return of_texts(translated(texts_of(operands[0]), make(call), kind), result), "CAST_OVERFLOW", NO_FAULTS

    return value


def _by_arrow(
    function: Callable[[Call, pa.Array], pa.Array],
) -> Callable[[Call, Sequence[Vector], pa.DataType], Computed]:
    def value(call: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
        return of_texts(function(call, texts_of(operands[0])), result), "CAST_OVERFLOW", NO_FAULTS

    return value


def _paired(function: Callable[[str, str], Any]) -> Callable[[Call, Sequence[Vector], pa.DataType], Computed]:
    """Compute a function of two strings, of which the second is mostly a literal."""

    def value(call: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
        other = literal_value(call.operands[1])
        if isinstance(other, str):
            results = translated(texts_of(operands[0]), lambda text: function(text, other), result)
            return of_texts(results, result), "CAST_OVERFLOW", NO_FAULTS
        length = joint_length(len(operands[0].valid), len(operands[1].valid))
        one, two = (texts_of(spread(operand, length)).to_pylist() for operand in operands)
        pairs = [None if a is None or b is None else function(a, b) for a, b in zip(one, two, strict=True)]
        return of_texts(pa.array(pairs, result), result), "CAST_OVERFLOW", NO_FAULTS

    return value


def _concat_ws(_: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    """Join the values that are not NULL; NULL only if the separator is NULL."""
    length = joint_length(*(len(operand.valid) for operand in operands))
    separator, *texts = (texts_of(spread(operand, length)) for operand in operands)
    # Arrow omits a row where every text is NULL; joined it is the empty text.
    has_text = reduce(pc.or_, [text.is_valid() for text in texts])
    texts[0] = pc.if_else(has_text, texts[0], pa.scalar("", texts[0].type))
    joined = pc.binary_join_element_wise(*texts, separator, null_handling="skip")
    return of_texts(joined, result), "CAST_OVERFLOW", NO_FAULTS


def _padded(call: Call) -> Callable[[str], str]:
    width, fill = max(int(literal_value(call.operands[1])), 0), str(literal_value(call.operands[2]))
    is_left = call.operation == "lpad"

    def pad(text: str) -> str:
        missing = width - len(text)
        if missing <= 0 or not fill:
            return text[:width]
        more = (fill * (missing // len(fill) + 1))[:missing]
        return more + text if is_left else text + more

    return pad


def _part(call: Call) -> Callable[[str], str]:
    delimiter, number = str(literal_value(call.operands[1])), int(literal_value(call.operands[2]))

    def part(text: str) -> str:
        parts = text.split(delimiter) if delimiter else [text]
        place = number - 1 if number > 0 else len(parts) + number
        return parts[place] if 0 <= place < len(parts) else ""

    return part


def _stripped(call: Call) -> Callable[[str], str]:
    characters, side = str(literal_value(call.operands[1])), literal_value(call.operands[2])
    if not characters:
        return lambda text: text
    return {
        "both": lambda text: text.strip(characters),
        "leading": lambda text: text.lstrip(characters),
        "trailing": lambda text: text.rstrip(characters),
    }[str(side)]


def _translation(call: Call) -> Callable[[str], str]:
    old, new = str(literal_value(call.operands[1])), str(literal_value(call.operands[2]))
    table: dict[int, str | None] = {}
    for place, letter in enumerate(old):
        table.setdefault(ord(letter), new[place] if place < len(new) else None)
    return lambda text: text.translate(table)


def _initcap(text: str) -> str:
    # The rest is lower case in its place: a final sigma has a form of its own.
    return " ".join(word[:1].title() + word.lower()[len(word[:1].lower()) :] for word in text.split(" "))


_SOUNDS = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "01230127022455012623017202")


def _soundex(text: str) -> str:
    """Return the first letter and the three digits of the sounds behind it, as Spark does; a text without one is kept."""
    if not ("A" <= text[:1].upper() <= "Z" and text[:1].isascii()):
        return text
    # What is no letter parts equal sounds, as a vowel does; H and W do not.
    sounds = "".join(one.upper() if one.isascii() and one.isalpha() else "A" for one in text).translate(_SOUNDS)
    last, digits = sounds[0], ""
    for sound in sounds[1:].replace("7", ""):
        digits += sound if sound not in {"0", last} else ""
        last = sound
    return text[0].upper() + digits[:3].ljust(3, "0")


def _duckdb_soundex(_: Call, texts: Sequence[str]) -> str:
    """Return the same by rewriting: a digit per letter, H and W omitted, runs made one, the first and the vowels dropped."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    (text,) = texts
    sounds = f"regexp_replace({text}, '[^A-Za-z]', 'A', 'g')"
    sounds = f"translate(upper({sounds}), '{letters}', '{letters.translate(_SOUNDS)}')"
    sounds = f"replace(regexp_replace({sounds}, '^7', '0'), '7', '')"
    for digit in "123456":
        sounds = f"regexp_replace({sounds}, '{digit}+', '{digit}', 'g')"
    digits = f"rpad(left(replace(substr({sounds}, 2), '0', ''), 3), 3, '0')"
    return f"CASE WHEN regexp_matches({text}, '^[A-Za-z]') THEN upper(left({text}, 1)) || {digits} ELSE {text} END"


def _digest(call: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    name = "md5" if call.operation == "md5" else _DIGESTS[int(literal_value(call.operands[1]))]

    def digest(given: str | bytes) -> str:
        raw = given.encode() if isinstance(given, str) else given
        return hashlib.new(name, raw, usedforsecurity=False).hexdigest()

    return of_texts(translated(texts_of(operands[0]), digest, _STRING), result), "CAST_OVERFLOW", NO_FAULTS


def _octets(_: Call, operands: Sequence[Vector], result: pa.DataType) -> Computed:
    return of_texts(pc.binary_length(texts_of(operands[0])), result), "CAST_OVERFLOW", NO_FAULTS


def _replace(call: Call, texts: pa.Array) -> pa.Array:
    old, new = str(literal_value(call.operands[1])), str(literal_value(call.operands[2]))
    return texts if not old else pc.replace_substring(texts, pattern=old, replacement=new)


def _replaced(texts: pa.Array, pattern: str, replacement: str) -> pa.Array:
    """Replace a pattern; $1 means what the first brackets found."""
    escaped = replacement.replace("\\", "\\\\")
    try:
        return pc.replace_substring_regex(texts, pattern=pattern, replacement=re.sub(r"\$([0-9])", r"\\\1", escaped))
    except pa.ArrowException as error:
        raise PlanError(
            f"regexp_replace cannot replace by {replacement!r}: {error}. Use $1 to $9 for groups the pattern has.",
            code="TYPE_MISMATCH",
        ) from error


def _named_groups(pattern: str) -> tuple[str, int]:
    """Return a pattern, as a whole and in its brackets, with names for its groups."""
    pieces, place, number, is_class = [], 0, 0, False
    while place < len(pattern):
        letter = pattern[place]
        if letter == "\\":
            pieces.append(pattern[place : place + 2])
            place += 2
            continue
        if letter == "[" and not is_class:
            is_class = True
        elif letter == "]":
            is_class = False
        if letter == "(" and not is_class and pattern[place + 1 : place + 2] != "?":
            number += 1
            pieces.append(f"(?P<g{number}>")
        else:
            pieces.append(letter)
        place += 1
    return f"(?P<g0>{''.join(pieces)})", number


def _extracted(call: Call, texts: pa.Array) -> pa.Array:
    pattern, _ = _named_groups(str(literal_value(call.operands[1])))
    group = int(literal_value(call.operands[2]))
    matches = pc.struct_field(pc.extract_regex(texts, pattern), f"g{group}")
    filled = matches.fill_null("")
    return filled if texts.null_count == 0 else pc.if_else(texts.is_valid(), filled, pa.scalar(None, filled.type))


def _named(name: str) -> Callable[[Call, Sequence[str]], str]:
    return lambda _, texts: f"{name}({', '.join(texts)})"


def _trimmed(_: Call, texts: Sequence[str], side: str) -> str:
    return f"trim({side.upper()} {texts[1]} FROM {texts[0]})"


def _duckdb_trimmed(call: Call, texts: Sequence[str]) -> str:
    name = {"both": "trim", "leading": "ltrim", "trailing": "rtrim"}[str(literal_value(call.operands[2]))]
    return f"{name}({texts[0]}, {texts[1]})"


TEXT_FUNCTIONS = {
    "ascii": Function(
        _strings_and(result=pa.int32()), _each(lambda _: lambda text: ord(text[0]) if text else 0, pa.int32()), _named("ascii"),
        lambda _, texts: f"CASE WHEN {texts[0]} = '' THEN 0 ELSE ord({texts[0]}) END",
    ),
    "concat_ws": Function(strings_only, _concat_ws, _named("concat_ws"), _named("concat_ws")),
    "contains": Function(
        _strings_and(result=pa.bool_()), _paired(lambda text, other: other in text), _named("contains"), _named("contains")
    ),
    "ends_with": Function(
        _strings_and(result=pa.bool_()), _paired(lambda text, other: text.endswith(other)), _named("endswith"),
        _named("suffix"),
    ),
    "initcap": Function(_strings_and(), _each(lambda _: _initcap), _named("initcap")),
    "instr": Function(
        _strings_and(result=pa.int32()), _paired(lambda text, other: text.find(other) + 1), _named("instr"),
        lambda _, texts: f"CAST(instr({texts[0]}, {texts[1]}) AS INT)",
    ),
    "lpad": Function(_width_rule, _each(_padded), _named("lpad"), _named("lpad")),
    "md5": Function(_digest_rule, _digest, _named("md5"), _named("md5")),
    "octet_length": Function(
        _octets_rule, _octets, _named("octet_length"), lambda _, texts: f"CAST(octet_length(encode({texts[0]})) AS INT)"
    ),
    "regexp_extract": Function(_pattern_rule, _by_arrow(_extracted), _named("regexp_extract"), _named("regexp_extract")),
    "regexp_like": Function(
        _pattern_rule,
        _by_arrow(lambda call, texts: pc.match_substring_regex(texts, str(literal_value(call.operands[1])))),
        _named("regexp_like"),
        _named("regexp_matches"),
    ),
    "regexp_replace": Function(
        _pattern_rule,
        _by_arrow(
            lambda call, texts: _replaced(texts, str(literal_value(call.operands[1])), str(literal_value(call.operands[2])))
        ),
        _named("regexp_replace"),
    ),
    "repeat": Function(
        _width_rule,
        _each(lambda call: lambda text: text * max(int(literal_value(call.operands[1])), 0)),
        _named("repeat"),
        _named("repeat"),
    ),
    "replace": Function(
        _strings_and(1, 2), _by_arrow(_replace), _named("replace"),
        lambda call, texts: texts[0] if literal_value(call.operands[1]) == "" else f"replace({', '.join(texts)})",
    ),
    "reverse": Function(_strings_and(), _by_arrow(lambda _, texts: pc.utf8_reverse(texts)), _named("reverse"),
                        _named("reverse")),
    "rpad": Function(_width_rule, _each(_padded), _named("rpad"), _named("rpad")),
    "sha2": Function(_digest_rule, _digest, _named("sha2")),
    "split_part": Function(_part_rule, _each(_part), _named("split_part"), _named("split_part")),
    "translate": Function(_strings_and(1, 2), _each(_translation), _named("translate"), _named("translate")),
    "trim_characters": Function(
        _side_rule,
        _each(_stripped),
        lambda call, texts: _trimmed(call, texts, str(literal_value(call.operands[2]))),
        _duckdb_trimmed,
    ),
}  # fmt: skip
"""By name."""

soundex = declared(
    "soundex(col)",
    "Return a letter and three digits, equal for English words that sound alike.",
    Function(_strings_and(), _each(lambda _: _soundex), _named("soundex"), _duckdb_soundex),
)
