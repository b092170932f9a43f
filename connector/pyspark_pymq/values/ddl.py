"""Spark's DDL text, such as ``id bigint, tags array<string>``, as a Spark type.

PySpark leaves this text to its JVM, which neither the processes that check options nor the tasks
can ask. Names may stand in backquotes; ``name type`` and ``name: type`` are the same; comments are
read and dropped. ``NOT NULL`` is refused: a value may lack any field.
"""

import re

from pyspark.sql import types as spark

_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\w+|[<>(),:])")
_SIMPLE: dict[str, spark.DataType] = {
    "boolean": spark.BooleanType(),
    "tinyint": spark.ByteType(),
    "byte": spark.ByteType(),
    "smallint": spark.ShortType(),
    "short": spark.ShortType(),
    "int": spark.IntegerType(),
    "integer": spark.IntegerType(),
    "bigint": spark.LongType(),
    "long": spark.LongType(),
    "float": spark.FloatType(),
    "real": spark.FloatType(),
    "double": spark.DoubleType(),
    "string": spark.StringType(),
    "binary": spark.BinaryType(),
    "date": spark.DateType(),
    "timestamp": spark.TimestampType(),
    "timestamp_ltz": spark.TimestampType(),
    "timestamp_ntz": spark.TimestampNTZType(),
}
_DECIMAL = {"decimal", "dec", "numeric"}
_KNOWN = ", ".join([*_SIMPLE, "decimal(p,s)", "array<…>", "map<…>", "struct<…>"])
#: As Spark's.
_DIGITS_MAX = 38


def struct_of_ddl(text: str) -> spark.StructType:
    """Return the struct that DDL text describes; ``struct<...>`` around it may be left out.

    Raises:
        ValueError: it is malformed, or has a type that is not supported.
    """
    tokens = _Tokens(text)
    if tokens.next_is("struct") and tokens.after_next_is("<"):
        found = tokens.type()
        assert isinstance(found, spark.StructType)
    else:
        found = tokens.fields(None)
    if tokens.peek() is not None:
        raise tokens.unexpected("the end")
    return found


class _Tokens:
    """What is left of a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[int, str]] = []
        self._next = at = 0
        end = len(text.rstrip())
        while at < end:
            found = _TOKEN.match(text, at)
            if found is None:
                raise ValueError(f"at {text[at:].strip()[:40]!r}: expected a name or a type")
            self._tokens.append((found.start(1), found[1]))
            at = found.end()

    def peek(self, further: int = 0) -> str | None:
        at = self._next + further
        return self._tokens[at][1] if at < len(self._tokens) else None

    def next_is(self, word: str) -> bool:
        return (self.peek() or "").lower() == word

    def after_next_is(self, word: str) -> bool:
        return self.peek(1) == word

    def unexpected(self, expected: str) -> ValueError:
        if self._next < len(self._tokens):
            rest = self._text[self._tokens[self._next][0] :]
            return ValueError(f"at {rest[:40]!r}: expected {expected}")
        return ValueError(f"it ends too soon: expected {expected}")

    def _take(self, word: str) -> bool:
        """Go past a word, if it is the next one."""
        if not self.next_is(word):
            return False
        self._next += 1
        return True

    def _expect(self, word: str) -> None:
        if not self._take(word):
            raise self.unexpected(word)

    def _name(self) -> str:
        token = self.peek()
        if token is None or not (token[0] == "`" or token[0] == "_" or token[0].isalnum()):
            raise self.unexpected("a name")
        self._next += 1
        return token[1:-1].replace("``", "`") if token[0] == "`" else token

    def fields(self, closing: str | None) -> spark.StructType:
        """Read ``name type, ...`` up to what closes it."""
        found = []
        while True:
            name = self._name()
            self._take(":")
            found.append(spark.StructField(name, self.type()))
            if self.next_is("not"):
                raise ValueError(f"field {name} is NOT NULL, but values may lack any field")
            if self._take("comment"):
                if (self.peek() or "")[:1] not in ("'", '"'):
                    raise self.unexpected("a comment in quotes")
                while (self.peek() or " ")[0] in "'\"":
                    self._next += 1
            if not self._take(","):
                break
        if closing is not None:
            self._expect(closing)
        return spark.StructType(found)

    def type(self) -> spark.DataType:
        """Read a type."""
        name = (self.peek() or "").lower()
        if name in _SIMPLE:
            self._next += 1
            return _SIMPLE[name]
        if name in _DECIMAL:
            self._next += 1
            return self._decimal()
        if name not in ("array", "map", "struct"):
            raise self.unexpected(f"a type: {_KNOWN}")
        self._next += 1
        self._expect("<")
        if name == "struct":
            return self.fields(">")
        first = self.type()
        if name == "array":
            self._expect(">")
            return spark.ArrayType(first)
        self._expect(",")
        second = self.type()
        self._expect(">")
        return spark.MapType(first, second)

    def _decimal(self) -> spark.DecimalType:
        precision, scale = 10, 0  # Spark's
        if self._take("("):
            precision = self._digits(1, _DIGITS_MAX)
            if self._take(","):
                scale = self._digits(0, precision)
            self._expect(")")
        return spark.DecimalType(precision, scale)

    def _digits(self, least: int, most: int) -> int:
        token = self.peek() or ""
        if not (token.isascii() and token.isdecimal() and least <= int(token) <= most):
            raise self.unexpected(f"a number of digits, {least}..{most}")
        self._next += 1
        return int(token)
