"""The text of statements as errors show it: values of options are stars, by the tokens of the dialect.

The law: outside of queries nothing that is assigned is shown, nor a text in quotes, nor a comment, whether the statement can be
read or not. A query ends at WITH (...), SETTINGS and the like; in it the value beside a secret name is hidden, and a hint is no
query. Of a text that is no tokens nothing is shown from its first quote.

The shown text is as long as the text, so positions are those of both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from zset_join.core.hidden_settings import is_secret_name

__all__ = ["hidden_spans", "hints", "replaced", "shown_unread"]

_QUERIES = frozenset({"DELETE", "INSERT", "SELECT", "UPDATE", "VALUES"})
_CLAUSES = frozenset({"OPTIONS", "PROPERTIES", "TBLPROPERTIES", "WITH"})
_ASSIGNS = frozenset({"=", "=>", ":=", "=="})
_NOT_OF_OPTIONS = frozenset({"DEFAULT", "INTERVAL"})
_QUOTE = re.compile(r"['\"`$]")
_HINT = re.compile(r"\s*/\*\+(.*?)(?:\*/|$)", re.DOTALL)
_NAME = re.compile(r"[\w.-]+")

Span: TypeAlias = tuple[int, int]
Tokenize: TypeAlias = Callable[[str], list[Token]]


def replaced(text: str, spans: Iterable[Span], by: str) -> str:
    """Return a text with another character in some places, each from its begin to before its end; blanks stay."""
    characters = list(text)
    for begin, end in spans:
        characters[begin:end] = re.sub(r"\S", by, text[begin:end])
    return "".join(characters)


def shown_unread(text: str, tokenize: Tokenize) -> str:
    quote = _QUOTE.search(text)
    begin = len(text) if quote is None else quote.start()
    try:
        spans = list(hidden_spans(text, tokenize(text[:begin]), tokenize))
    except SqlglotError:
        spans, begin = [], 0
    return replaced(text, [*spans, (begin, len(text))], "*")


def hidden_spans(text: str, tokens: Sequence[Token], tokenize: Tokenize) -> Iterator[Span]:
    """Yield the places of a statement that are not shown."""
    for begin, end in hints(text, tokens):
        try:
            inner = tokenize(text[begin:end])
        except SqlglotError:
            yield begin, end
        else:
            yield from ((begin + start, begin + stop) for start, stop in hidden_spans(text[begin:end], inner, tokenize))
    is_query, end = False, 0
    is_setting = bool(tokens) and _word(tokens[0]) == "SET"
    for place, token in enumerate(tokens):
        word, before = _word(token), tokens[max(0, place - 1)]
        following = tokens[place + 1] if place + 1 < len(tokens) else None
        if word in _QUERIES:
            is_query = True
        elif word == "SETTINGS" or (word == "(" and _word(before) in _CLAUSES):
            is_query = False
        assigns = _ASSIGNS | {"TO"} if is_setting else _ASSIGNS
        if is_query:
            if word in assigns and following is not None and is_secret_name(before.text):
                yield following.start, following.end + 1
            continue
        is_name = following is not None and _word(following) in assigns and _NAME.fullmatch(token.text)
        if token.start < end or (_is_text(token) and not is_name and _word(before) not in _NOT_OF_OPTIONS):
            yield token.start, token.end + 1
        if word in assigns:
            end = max(end, _end_of_value(tokens, place + 1))
        if following is not None:
            yield token.end + 1, following.start
        elif token.comments:
            yield token.end + 1, f"{text}\n".find("\n", token.end)


def hints(text: str, tokens: Sequence[Token]) -> Iterator[Span]:
    """Yield the insides of hints: behind SELECT, and behind a table, where the tokenizer takes them for comments."""
    for token in tokens:
        begin = token.start if token.token_type == TokenType.HINT else token.end + 1
        found = _HINT.match(text, begin) if token.comments or begin == token.start else None
        if found is not None:
            yield found.span(1)


def _end_of_value(tokens: Sequence[Token], place: int) -> int:
    """Return where the value ends that begins with a token: before a comma, or the bracket that closes."""
    depth = 0
    while place < len(tokens) and (depth or _word(tokens[place]) not in {",", ")"}):
        depth += {"(": 1, ")": -1}.get(_word(tokens[place]), 0)
        place += 1
    return tokens[min(place, len(tokens) - 1)].start + (place == len(tokens))


def _word(token: Token) -> str:
    return "" if _is_text(token) or token.token_type == TokenType.IDENTIFIER else token.text.upper()


def _is_text(token: Token) -> bool:
    return token.token_type.name.endswith("STRING")
