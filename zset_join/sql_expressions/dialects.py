"""The SQL of five systems: how each quotes, what it calls its types, and which of its clauses others do not have.

All parse into one tree of sqlglot's nodes: a dialect here is Spark's, with the few differences that the documents of the system
name. What no dialect of sqlglot reads is read here: `VERSIONED ON`, `EMIT CHANGELOG`, `SETTINGS`, an alias before or after
`FOR SYSTEM_TIME AS OF`, ON behind a comma, MATCH_CONDITION.

Statements are split by the tokenizer, never by text: a semicolon in a string, a name or a comment is no end.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, SqlglotError, TokenError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from zset_join.core.errors import OptionError, SqlError
from zset_join.core.frames import own_frames
from zset_join.sql_expressions.consumed import Position, near, position_of, tracked
from zset_join.sql_expressions.option_values import hidden_spans, replaced, shown_unread
from zset_join.sql_expressions.unknown import CLAUSES, JOIN_WORDS, ONCE_TOO_OFTEN, phrase_at, refusal

# What the parser cannot read becomes an error of ours; it need not be logged as well.
logging.getLogger("sqlglot").setLevel(logging.ERROR)

__all__ = ["DIALECTS", "Statement", "check_quotes", "dialect_named", "parse_expression", "parse_query", "split", "too_deep"]

MAX_CHARACTERS = 1_000_000
MAX_TOKENS = 200_000
MAX_DEPTH = 60
MAX_JOINS = 64
MAX_LEVELS = 300
MAX_QUERIES = 256
_STATEMENT_SET = ("EXECUTE", "STATEMENT", "SET", "BEGIN")
_SET_BEGINS = frozenset({_STATEMENT_SET, ("EXECUTE", "STATEMENT SET", "BEGIN")})


class _StreamParser(SparkParser):
    """Spark's parser with the forms of queries over streams."""

    def _parse_version(self) -> exp.Version | None:
        version = super()._parse_version()
        if version is not None and self._match_text_seq("VERSIONED", "ON"):
            version.set("versioned_on", self._parse_id_var())
        return version

    def _parse_table(self, *args: Any, **options: Any) -> exp.Expr | None:
        table = super()._parse_table(*args, **options)
        if isinstance(table, exp.Table) and table.args.get("version") is None and not options.get("schema"):
            version = self._parse_version()
            if version is not None:
                table.set("version", version)
                if not table.alias:
                    alias = self._parse_table_alias()
                    if alias is not None:
                        table.set("alias", alias)
        return table

    def _parse_join_parts(self) -> tuple[Token | None, Token | None, Token | None]:
        method, side, kind = super()._parse_join_parts()
        # LEFT ASOF JOIN is ASOF LEFT JOIN.
        if method is None and (side or kind) and self._match(TokenType.ASOF):
            method = self._prev
        return method, side, kind

    def _parse_join(self, *args: Any, **options: Any) -> exp.Join | None:
        is_comma = self._curr.token_type == TokenType.COMMA
        join = super()._parse_join(*args, **options)
        if is_comma and join is not None:
            join.meta["comma"] = True
        if is_comma and join is not None and self._match(TokenType.ON):
            join.set("on", self._parse_disjunction())
            join.set("kind", None)
        return join


class StreamSql(Spark):
    """Spark SQL with the forms of queries over streams."""

    class Tokenizer(Spark.Tokenizer):
        """Spark's tokens, and two words more."""

        KEYWORDS: ClassVar[dict[str, TokenType]] = {
            **Spark.Tokenizer.KEYWORDS,
            "ASOF": TokenType.ASOF,
            "MATCH_CONDITION": TokenType.MATCH_CONDITION,
            # With a zone, whatever TIMESTAMP is.
            "TIMESTAMPTZ": TokenType.TIMESTAMPLTZ,
        }
        # As Spark does since 4.0: a quote is doubled, or has a backslash before it.
        STRING_ESCAPES: ClassVar[list[str]] = ["'", "\\"]
        # No statement is taken as opaque text.
        COMMANDS: ClassVar[set[TokenType]] = set()

    Parser = _StreamParser


class SparkSql(StreamSql):
    """Spark SQL."""


class FlinkSql(StreamSql):
    """Flink SQL: names in backticks, and texts of the standard: a quote is doubled, a backslash is one."""

    class Tokenizer(StreamSql.Tokenizer):
        """Texts of the standard; options in double quotes too, as in documents of Flink's vendors."""

        STRING_ESCAPES: ClassVar[list[str]] = ["'"]


class TimeplusSql(StreamSql):
    """Timeplus: names in backticks or double quotes."""

    class Tokenizer(StreamSql.Tokenizer):
        """Double quotes quote names."""

        IDENTIFIERS: ClassVar[list[str | tuple[str, str]]] = ['"', "`"]
        # 5s is a span of time here, in Spark a SMALLINT.
        NUMERIC_LITERALS: ClassVar[dict[str, str]] = {}
        QUOTES: ClassVar[list[tuple[str, str] | str]] = ["'"]
        # As in ClickHouse, both.
        STRING_ESCAPES: ClassVar[list[str]] = ["'", "\\"]


class RisingWaveSql(TimeplusSql):
    """RisingWave: Postgres' quotes and types."""

    class Tokenizer(TimeplusSql.Tokenizer):
        """INT8 has eight bytes."""

        KEYWORDS: ClassVar[dict[str, TokenType]] = {**TimeplusSql.Tokenizer.KEYWORDS, "INT8": TokenType.BIGINT}
        STRING_ESCAPES: ClassVar[list[str]] = ["'"]


class LaminarSql(TimeplusSql):
    """LaminarDB: standard quotes."""

    class Tokenizer(TimeplusSql.Tokenizer):
        """Texts of the standard."""

        STRING_ESCAPES: ClassVar[list[str]] = ["'"]


DIALECTS: dict[str, type[StreamSql]] = {
    "flink": FlinkSql,
    "laminardb": LaminarSql,
    "risingwave": RisingWaveSql,
    "spark": SparkSql,
    "timeplus": TimeplusSql,
}
"""Every dialect by its name."""


@dataclass(frozen=True)
class Statement:
    """One statement, as tokens."""

    text: str
    tokens: tuple[Token, ...] = field(repr=False)
    dialect: str
    settings: dict[str, str] = field(default_factory=dict)
    written: str = field(default="", repr=False)
    is_kept: bool = False
    variables: Collection[str] | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """Return the tokens as upper-case words."""
        return tuple(token.text.upper() for token in self.tokens)

    @property
    def sql(self) -> str:
        return self.written[self.tokens[0].start : self.tokens[-1].end + 1]

    def sql_from(self, index: int) -> str:
        return self.written[self.tokens[index].start : self.tokens[-1].end + 1]

    def shown(self, index: int) -> str:
        token = self.tokens[index]
        shown = self.text[token.start : token.end + 1]
        return token.text if shown == self.written[token.start : token.end + 1] else shown

    def place(self, index: int) -> Position:
        """Return the position of a token; behind the last one where there are not so many."""
        if index < len(self.tokens):
            return Position(self.text, self.tokens[index].start)
        return Position(self.text, self.tokens[-1].end + 1)


def dialect_named(name: str) -> type[StreamSql]:
    dialect = DIALECTS.get(str(name).lower())
    if dialect is None:
        raise OptionError(
            f"dialect={name!r} is not known.{near(str(name), DIALECTS)}",
            code="UNKNOWN_DIALECT",
            dialect=name,
        )
    return dialect


def split(text: str, *, dialect: str) -> list[Statement]:
    r"""Split a text into statements, by its tokens.

    >>> [statement.sql for statement in split("SELECT ';' AS a; -- ; \n SELECT 2", dialect="spark")]
    ["SELECT ';' AS a", 'SELECT 2']
    """
    if not isinstance(text, str):
        raise SqlError(f"statements are a string, not {type(text).__name__}.", code="SQL_SYNTAX")
    if len(text) > MAX_CHARACTERS:
        raise SqlError(
            f"the text has {len(text)} characters; at most {MAX_CHARACTERS} are read at once. Split the file.",
            code="SQL_TOO_LONG",
        )
    try:
        tokens = dialect_named(dialect)().tokenize(text)
    except (TokenError, ParseError) as error:
        raise _unreadable(shown_unread(text, dialect_named(dialect)().tokenize), error) from None
    if len(tokens) > MAX_TOKENS:
        raise SqlError(
            f"the text has {len(tokens)} words; at most {MAX_TOKENS} are read at once. Split the file.", code="SQL_TOO_LONG"
        )
    tokens = [part for token in tokens for part in _parts_of_number(token)]
    found: list[tuple[Token, ...]] = []
    current: list[Token] = []
    depth = 0
    for token in tokens:
        if token.token_type == TokenType.SEMICOLON and depth <= 0:
            if current:
                found.append(tuple(current))
            current = []
            depth = 0
            continue
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
        if depth > MAX_DEPTH:
            raise SqlError(
                f"more than {MAX_DEPTH} brackets are open here; write parts of it as views.",
                code="SQL_TOO_DEEP",
                at=Position(text, token.start),
            )
        current.append(token)
        if len(current) <= len(_STATEMENT_SET) and tuple(one.text.upper() for one in current) in _SET_BEGINS:
            # The statements of the set follow without a semicolon between.
            found.append(tuple(current))
            current = []
    if current:
        found.append(tuple(current))
    tokenize = dialect_named(dialect)().tokenize
    hidden = [span for each in found for span in hidden_spans(text, each, tokenize)]
    shown = replaced(text, hidden, "*") if hidden else text
    gaps = [(one.end + 1, following.start) for each in found for one, following in pairwise(each)] if hidden else []
    comments = [gap for gap in gaps if shown[slice(*gap)] != text[slice(*gap)] and "/" not in shown[slice(*gap)]]  # no hints
    written = replaced(text, comments, " ") if comments else text
    return [Statement(shown, each, dialect, written=written) for each in found]


_EXPONENT = re.compile(r"((?:\d+\.?\d*|\.\d+)[eE][+-]?\d+)([+-])(.+)")


def _parts_of_number(token: Token) -> list[Token]:
    """Return `1e0+1`, which the tokenizer takes for one number, as a number, a sign and a number."""
    found = _EXPONENT.fullmatch(token.text) if token.token_type == TokenType.NUMBER else None
    if found is None:
        return [token]
    kinds = (TokenType.NUMBER, TokenType.PLUS if found[2] == "+" else TokenType.DASH, TokenType.NUMBER)
    begins = [token.start + found.start(place) for place in (1, 2, 3)]
    parts = [
        Token(kind, found[place], line=token.line, col=token.col, start=begin, end=begin + len(found[place]) - 1)
        for place, (kind, begin) in enumerate(zip(kinds, begins, strict=True), 1)
    ]
    return [*parts[:2], *_parts_of_number(parts[2])]


def check_quotes(statement: Statement, tokens: Sequence[Token]) -> None:
    """Refuse double quotes in Flink's dialect, where they mean nothing: who writes them means a name, and would get a text."""
    for token in tokens if statement.dialect == "flink" else ():
        if token.token_type == TokenType.STRING and statement.written[token.start] == '"':
            raise SqlError(
                f'"{token.text}" is in double quotes, which Flink does not have. A name is in backticks, as `{token.text}`; a '
                f"text is in single quotes, as '{token.text}'.",
                code="SQL_SYNTAX",
                at=Position(statement.text, token.start),
            )


def parse_query(statement: Statement, tokens: tuple[Token, ...]) -> exp.Expr:
    node = _parsed(statement, tokens)
    if not isinstance(node, exp.Query):
        raise SqlError(
            f"this is not a query but {type(node).__name__.upper()}; write SELECT ...", code="SQL_SYNTAX", at=statement.place(0)
        )
    return node


def parse_expression(statement: Statement, tokens: tuple[Token, ...], *, is_item: bool = False) -> exp.Expr:
    if not tokens:
        raise SqlError("an expression is missing here.", code="SQL_SYNTAX", at=statement.place(len(statement.tokens)))
    prefix = dialect_named(statement.dialect)().tokenize("SELECT ")
    shifted = Token(TokenType.SELECT, prefix[0].text, line=tokens[0].line, col=0, start=tokens[0].start, end=tokens[0].start)
    node = _parsed(statement, (shifted, *tokens))
    is_one = isinstance(node, exp.Select) and len(node.expressions) == 1
    is_named = is_one and isinstance(node.expressions[0], exp.Alias)
    if not is_one or (is_named and not is_item) or any(value for name, value in node.args.items() if name != "expressions"):
        raise SqlError("this is not one expression.", code="SQL_SYNTAX", at=Position(statement.text, tokens[0].start))
    expression: exp.Expr = node.expressions[0]
    return expression


def _parsed(statement: Statement, tokens: tuple[Token, ...]) -> exp.Expr:
    check_quotes(statement, tokens)
    parser = dialect_named(statement.dialect)().parser()
    try:
        with own_frames():
            nodes = parser.parse(_without_zone_words(_without_window_words(statement, tokens)), statement.text)
    except ParseError as error:
        raise _syntax(statement, error) from error
    except (SqlglotError, ValueError, TypeError, AttributeError, IndexError, KeyError, AssertionError) as error:
        # The parser's own stumbles over nonsense; what they are called helps nobody.
        raise SqlError(
            "this statement cannot be read. Check it from here on.", code="SQL_SYNTAX", at=statement.place(0)
        ) from error
    except RecursionError:
        raise too_deep(statement) from None
    if len(nodes) != 1 or nodes[0] is None:
        raise SqlError("one statement is expected here.", code="SQL_SYNTAX", at=statement.place(0))
    node: exp.Expr = nodes[0]
    _check_whole(statement, node)
    _check_commas(statement, tokens)
    _check_passed_over(statement, tokens)
    _check_join_words(statement, node)
    _check_levels(statement, node)
    queries = sum(1 for _ in node.find_all(exp.Select))
    if queries > MAX_QUERIES:
        raise SqlError(
            f"the statement has {queries} queries; at most {MAX_QUERIES} are planned. Write parts of it as views.",
            code="SQL_TOO_DEEP",
            at=statement.place(0),
        )
    joins = sum(1 for _ in node.find_all(exp.Join))
    if joins > MAX_JOINS:
        raise SqlError(
            f"the statement has {joins} joins; at most {MAX_JOINS} are planned. Write parts of it as views.",
            code="SQL_TOO_DEEP",
            at=statement.place(0),
        )
    return tracked(node)


def too_deep(statement: Statement) -> SqlError:
    """Return the refusal of a statement with more levels than are read."""
    return SqlError(
        "the statement is nested too deeply, or a chain of operators other than AND, OR and || is too long. Write parts of it "
        "as columns of a subquery or a view.",
        code="SQL_TOO_DEEP",
        at=statement.place(0),
    )


_CHAINED = (exp.And, exp.DPipe, exp.Or, exp.Union)


def _check_levels(statement: Statement, root: exp.Expr) -> None:
    """Refuse a tree of more levels than are bound; a chain of one operator that needs no brackets is one level."""
    waiting = [(root, 0)]
    while waiting:
        node, level = waiting.pop()
        if level > MAX_LEVELS:
            raise too_deep(statement)
        chain = type(node) if isinstance(node, _CHAINED) else None
        waiting += ((one, level + (type(one) is not chain)) for one in node.iter_expressions())


def _check_whole(statement: Statement, root: exp.Expr) -> None:
    """Refuse a tree with holes, which the parser leaves where an operand is missing."""
    for node in root.walk():
        has_hole = any(isinstance(value, list) and None in value for value in node.args.values())
        if has_hole or any(is_needed and node.args.get(name) is None for name, is_needed in node.arg_types.items()):
            raise SqlError(
                f"syntax: an operand of {type(node).__name__.upper()} is missing.",
                code="SQL_SYNTAX",
                at=position_of(node, statement.text) or statement.place(0),
            )


_BEHIND_LISTS = frozenset(
    {TokenType.COMMA, TokenType.EXCEPT, TokenType.FROM, TokenType.GROUP_BY, TokenType.HAVING, TokenType.INTERSECT,
     TokenType.LIMIT, TokenType.ON, TokenType.ORDER_BY, TokenType.QUALIFY, TokenType.R_PAREN, TokenType.UNION, TokenType.WHERE}
)  # fmt: skip


_PASSED_OVER = (("ON", "OVERFLOW"), ("SELECT", "AS"))
"""Words that the parser reads, and of which its tree holds nothing."""


def _check_passed_over(statement: Statement, tokens: tuple[Token, ...]) -> None:
    words = [token.text.upper() for token in tokens]
    if words[:1] == ["AS"]:
        raise SqlError("syntax: AS is here twice.", code="SQL_SYNTAX", at=Position(statement.text, tokens[0].start))
    for place, token in enumerate(tokens):
        emitted = next((one for one in _PASSED_OVER if tuple(words[place : place + len(one)]) == one), None)
        if emitted is not None and token.token_type not in {TokenType.STRING, TokenType.IDENTIFIER}:
            raise SqlError(
                f"{' '.join(emitted)} is not supported here. Leave it out.",
                code="NOT_OFFERED",
                at=Position(statement.text, token.start),
            )


def _check_commas(statement: Statement, tokens: tuple[Token, ...]) -> None:
    """Refuse a comma that nothing follows, which the parser passes over."""
    for token, following in zip(tokens, (*tokens[1:], None), strict=True):
        if token.token_type == TokenType.COMMA and (following is None or following.token_type in _BEHIND_LISTS):
            raise SqlError("syntax: nothing follows this comma.", code="SQL_SYNTAX", at=Position(statement.text, token.start))


def _check_join_words(statement: Statement, root: exp.Expr) -> None:
    """Refuse a word behind a table that another system reads as a kind of join, and the parser as the name of the table."""
    # Where a column is qualified with it, or AS is before it, it is a name.
    aliases = [one.args.get("alias") for one in root.find_all(exp.Table, exp.Subquery)]
    names = [one.this for one in aliases if isinstance(one, exp.TableAlias) and one.this is not None]
    begins = {one.meta.get("start") for one in names if one.name.upper() in {*JOIN_WORDS, *CLAUSES}}
    words, owners = _words_of(statement) if begins else ([], [])  # of all tokens: VALUES has thousands of expressions
    for place, token in enumerate(owners):
        is_name = token.start not in begins or words[place - 1] == "AS" or not words[place]
        if is_name or any(one.table.lower() == token.text.lower() for one in root.find_all(exp.Column)):
            continue
        phrase = phrase_at(words, place)
        if phrase is not None:
            raise SqlError(
                f"{refusal(phrase)}; if it is a name, write AS {token.text}.",
                code="NOT_OFFERED",
                at=Position(statement.text, token.start),
            )


def _words_of(statement: Statement) -> tuple[list[str], list[Token]]:
    """Return the words of a statement, and the token of each: some words are one token. A name or text in quotes is no word."""
    quoted = {TokenType.IDENTIFIER, TokenType.STRING}
    parts = [
        ("" if token.token_type in quoted else word, token)
        for token in statement.tokens
        for word in token.text.upper().split() or [""]
    ]
    return [word for word, _ in parts], [token for _, token in parts]


def _word_near(statement: Statement, place: Position) -> SqlError | None:
    """Return the refusal of a word of another system where the parser stumbles: before it, at it, or behind it."""
    words, owners = _words_of(statement)
    here = next((at for at, token in enumerate(owners) if token.start >= place.offset), len(owners))
    near_by = [at for at in (here, here + 1, here - 1, here - 2) if 0 <= at < len(words)]
    for at in (*near_by, *range(len(words))):
        phrase = phrase_at(words, at)
        # Far from there only what is a word of that system and nothing else.
        is_sure = at in near_by or (phrase is not None and phrase.endswith(("JOIN", "RECOGNIZE")))
        is_name = [words[at], "."] in [words[one : one + 2] for one in range(len(words))] or words[at - 1 : at] in (
            ["."],
            ["AS"],
        )
        is_name = is_name or words[at + 1 : at + 2] in ([","], ["="]) or words[at - 1 : at + 1] == ["(", "PARTITION"]
        if phrase is not None and is_sure and not is_name and phrase not in ONCE_TOO_OFTEN:
            return SqlError(f"{refusal(phrase)}.", code="NOT_OFFERED", at=Position(statement.text, owners[at].start))
    return None


_WINDOWS = frozenset({"CUMULATE", "HOP", "SESSION", "TUMBLE"})
_OF_WINDOWS = ("DATA", "TIMECOL", "SLIDE", "STEP", "SIZE")


def _without_window_words(statement: Statement, tokens: tuple[Token, ...]) -> list[Token]:
    """Leave out what names the operands of a window: TUMBLE(DATA => TABLE events, TIMECOL => ..., SIZE => ...)."""
    kept: list[Token] = []
    last = -1
    for place, token in enumerate(tokens):
        before = [one.text.upper() for one in tokens[max(0, place - 2) : place]]
        if before[1:] == ["("] and before[0] in _WINDOWS:
            last = -1
            if before[0] == "SESSION":
                raise SqlError(
                    "SESSION windows are not supported: they depend on the rows between. Group by a column with the session.",
                    code="NOT_OFFERED",
                    at=Position(statement.text, tokens[place - 2].start),
                )
        is_name = place + 1 < len(tokens) and tokens[place + 1].token_type == TokenType.FARROW
        if is_name and token.text.upper() in _OF_WINDOWS:
            number = _OF_WINDOWS.index(token.text.upper())
            if number < last:
                raise SqlError(
                    f"the operands of a window are in this order: {', '.join(_OF_WINDOWS)}.",
                    code="NOT_OFFERED",
                    at=Position(statement.text, token.start),
                )
            last = number
            continue
        is_arrow = token.token_type == TokenType.FARROW and tokens[place - 1].text.upper() in _OF_WINDOWS
        first = kept[-2].text.upper() if len(kept) > 1 and kept[-1].token_type == TokenType.L_PAREN else ""
        if not is_arrow and not (token.text.upper() == "TABLE" and first in _WINDOWS):
            kept.append(token)
    return kept


_ZONES = {
    ("WITH", "LOCAL", "TIME", "ZONE"): TokenType.TIMESTAMPLTZ,
    ("WITH", "TIME", "ZONE"): TokenType.TIMESTAMPLTZ,
    ("WITHOUT", "TIME", "ZONE"): TokenType.TIMESTAMPNTZ,
}


def _without_zone_words(tokens: list[Token]) -> list[Token]:
    """Return TIMESTAMP WITH and WITHOUT TIME ZONE as one word each: Spark's grammar reads both as TIMESTAMP."""
    kept: list[Token] = []
    words = [token.text.upper() for token in tokens]
    place = 0
    while place < len(tokens):
        token = tokens[place]
        begin = place + (4 if words[place + 1 : place + 2] == ["("] and words[place + 3 : place + 4] == [")"] else 1)
        zone = next((one for one in _ZONES if tuple(words[begin : begin + len(one)]) == one), None)
        if token.token_type != TokenType.TIMESTAMPTZ or words[place] != "TIMESTAMP" or zone is None:
            kept.append(token)
            place += 1
            continue
        kind = Token(_ZONES[zone], token.text, line=token.line, col=token.col, start=token.start, end=token.end)
        kept += [kind, *tokens[place + 1 : begin]]
        place = begin + len(zone)
    return kept


def _unreadable(text: str, error: SqlglotError) -> SqlError:
    """Return the refusal of a text that is no tokens; the tokenizer's reason ends with the place."""
    reason = str(error.__cause__ or "something is open")
    begun = re.search(r" from \d+:(\d+)$", reason)
    what = "a comment or a quote is open" if begun is None else reason[: begun.start()].lower()
    return SqlError(
        f"the text cannot be read: {what}. Close what is open; X'...' holds pairs of 0 to 9 and A to F.",
        code="SQL_SYNTAX",
        at=None if begun is None else Position(text, min(int(begun[1]), len(text))),
    )


def _syntax(statement: Statement, error: ParseError) -> SqlError:
    detail: dict[str, Any] = error.errors[0] if error.errors else {}
    line, column = detail.get("line"), detail.get("col")
    highlight = str(detail.get("highlight") or "")
    place = statement.place(0)
    if isinstance(line, int) and isinstance(column, int):
        for token in statement.tokens:
            if token.line == line and token.col == column:
                place = Position(statement.text, token.start)
                break
    what = str(detail.get("description") or "it cannot be read").rstrip(".")
    missing = re.match(r"Required keyword: '(\w+)' missing for <class '[\w.]*\.(\w+)'>", what)
    if missing is not None:
        what = f"{missing[2].upper()} lacks {'an operand' if missing[1] == 'this' else missing[1].upper()}"
    shown = f' at "{highlight}"' if highlight else ""
    return _word_near(statement, place) or SqlError(f"syntax: {what}{shown}.", code="SQL_SYNTAX", at=place)
