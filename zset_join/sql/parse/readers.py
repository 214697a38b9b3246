"""Read the tokens of a statement that no parser of queries reads: words, names, options, up to an end."""

from __future__ import annotations

from sqlglot.tokenizer_core import Token, TokenType

from zset_join.core.errors import SqlError
from zset_join.sql.parse.secrets import given_value
from zset_join.sql_expressions.dialects import Statement, check_quotes

__all__ = ["Reader"]


class Reader:
    """Read the tokens of one statement, one after the other."""

    def __init__(self, statement: Statement, index: int = 0) -> None:
        self.statement = statement
        self.tokens = statement.tokens
        self.index = index

    @property
    def word(self) -> str:
        """Return the current token in capitals; empty behind the last one."""
        return self.tokens[self.index].text.upper() if self.index < len(self.tokens) else ""

    @property
    def is_done(self) -> bool:
        return self.index >= len(self.tokens)

    def has(self, *words: str) -> bool:
        """Read these words if they come next, and return whether; a quoted name is no word."""
        index, left = self.index, list(words)
        while left:
            if index >= len(self.tokens) or self.tokens[index].token_type in {TokenType.IDENTIFIER, TokenType.STRING}:
                return False
            # Some words come in one token, such as PRIMARY KEY.
            parts = self.tokens[index].text.upper().split()
            if parts != left[: len(parts)]:
                return False
            left = left[len(parts) :]
            index += 1
        self.index = index
        return True

    def expect(self, *words: str) -> None:
        if not self.has(*words):
            self.fail(f"expected {' '.join(words)}")

    def end(self) -> None:
        """Refuse a tail of the statement."""
        if not self.is_done:
            self.fail("expected the end")

    def fail(self, what: str) -> None:
        here = f'"{self.statement.shown(self.index)}"' if not self.is_done else "the end"
        raise SqlError(f"{what}, found {here}.", code="SQL_SYNTAX", at=self.statement.place(self.index))

    def name(self, what: str = "a name") -> str:
        """Read a name, or the last part of one with dots."""
        part = self._part(what)
        while not self.is_done and self.tokens[self.index].token_type == TokenType.DOT:
            self.index += 1
            part = self._part(what)
        return part

    def _part(self, what: str) -> str:
        check_quotes(self.statement, self.tokens[self.index : self.index + 1])
        token = self.tokens[self.index] if not self.is_done else None
        is_word = token is not None and (token.text[:1].isalpha() or token.text[:1] == "_")
        if token is None or not (token.token_type == TokenType.IDENTIFIER or is_word) or token.token_type == TokenType.STRING:
            self.fail(f"expected {what}")
            return ""
        self.index += 1
        return token.text

    def names(self) -> tuple[str, ...]:
        """Read names in brackets."""
        self.expect("(")
        columns = [self.name("a column")]
        while self.has(","):
            columns.append(self.name("a column"))
        self.expect(")")
        return tuple(columns)

    def value(self) -> str:
        """Read a string, number, or word."""
        token = self.tokens[self.index] if not self.is_done else None
        is_word = token is not None and (token.text[:1].isalnum() or token.text[:1] in {"_", "."})
        if token is None or not (is_word or token.token_type in {TokenType.DASH, TokenType.IDENTIFIER, TokenType.STRING}):
            self.fail("expected a value")
            return ""
        self.index += 1
        if token.token_type == TokenType.DASH:
            return "-" + self.value()
        return token.text

    def string(self, what: str) -> str:
        if self.is_done or self.tokens[self.index].token_type != TokenType.STRING:
            self.fail(f"expected {what} in quotes")
        return self.value()

    def options(self, *, equals: str = "=") -> dict[str, str]:
        """Read `key = value, ...` as long as it continues."""
        options: dict[str, str] = {}
        while not self.is_done and self.word != ")":
            at = self.statement.place(self.index)
            key = self.key()
            self.expect(equals)
            if key in options:
                raise SqlError(f"'{key}' is given twice. Keep one.", code="SAID_TWICE", at=at, name=key)
            options[key] = given_value(key, self.value(), self.statement, at)
            if not self.has(","):
                break
            if self.word in {"", ")"}:
                self.fail("expected an option after the comma")
        return options

    def key(self) -> str:
        """Read the name of an option or setting, in quotes or without."""
        if not self.is_done and self.tokens[self.index].token_type == TokenType.STRING:
            return self.value()
        parts = [self._part("an option")]
        while self.has("."):
            parts.append(self._part("an option"))
        return ".".join(parts)

    def until(self, *ends: str) -> tuple[Token, ...]:
        """Read tokens up to a comma, a closing bracket or one of the words, outside of brackets."""
        begin, depth = self.index, 0
        while not self.is_done:
            if depth == 0 and (self.word in {",", ")"} or self.word in ends):
                break
            depth += {"(": 1, ")": -1}.get(self.word, 0)
            self.index += 1
        return tuple(self.tokens[begin : self.index])
