"""SQL92 filters as tokens.

Blanks and comments (``-- to the end of the line``, ``/* ... */``) separate tokens. The longest
match wins, and of equal ones the first in this table:

| kind | |
|---|---|
| keyword | one of ``KEYWORDS``, in any case |
| whole | ``0``; or digits that do not begin with 0, perhaps with an ``L``: ``05`` is two tokens |
| float | ``5.``, ``5.5``, ``.5``, each with an exponent or not, and ``5E10`` |
| string | between single quotes, a quote in it doubled |
| name | a letter, ``_`` or ``$``, then also digits; ASCII alone, and its case counts |
| symbol | ``= <> > >= < <= ( ) , + -`` |

Two minus signs begin a comment only if that line ends: at the end of an expression they are two
minus signs.

Source: RocketMQ SelectorParser.jj.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pymq.errors import FilterSyntaxError

KEYWORDS = {
    *("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"),
    *("CONTAINS", "STARTSWITH", "ENDSWITH"),
}

WHOLE = "whole number"
FLOAT = "float"
STRING = "string"
NAME = "name"
END = "end of the expression"

_BLANK = re.compile(r"(?:[ \t\n\r\f]+|--[^\n\r]*(?:\r\n|\n|\r)|/\*[^*]*\*(?:\*|[^*/][^*]*\*)*/)*")
#: What blanks and comments begin with.
_BEFORE_BLANKS = frozenset(" \t\n\r\f-/")
_EXPONENT = r"[eE][+-]?[0-9]+"
_TOKEN = re.compile(
    rf"(?P<float>[0-9]+\.[0-9]*(?:{_EXPONENT})?|\.[0-9]+(?:{_EXPONENT})?|[0-9]+{_EXPONENT})"
    r"|(?P<whole>0|[1-9][0-9]*[lL]?)"
    r"|(?P<string>'(?:''|[^'])*')"
    r"|(?P<name>[a-zA-Z_$][a-zA-Z0-9_$]*)"
    r"|(?P<symbol><>|>=|<=|[=<>(),+-])"
)
_KINDS = {"float": FLOAT, "whole": WHOLE, "string": STRING}


@dataclass(slots=True)  # not frozen: there may be 60,000
class Token:
    """One token of an expression; not to be modified."""

    kind: str  # WHOLE, FLOAT, STRING, NAME, END; a keyword in capitals; a symbol as it is
    text: str  # as written; of a string its value, without quotes
    position: int  # of its first character in the expression, from 0


def tokens(expression: str) -> Iterator[Token]:
    """Cut an expression into tokens, the last one of kind ``END``; each when it is asked for.

    Raises:
        FilterSyntaxError: what follows is not a token.
    """
    position = _after_blanks(expression, 0)
    while position < len(expression):
        match = _TOKEN.match(expression, position)
        if match is None:
            raise FilterSyntaxError(f"unexpected character {place(expression, position)}")
        yield _token(match)
        position = match.end()
        if expression[position : position + 1] in _BEFORE_BLANKS:
            position = _after_blanks(expression, position)
    yield Token(END, "", position)


def place(expression: str, position: int) -> str:
    """Say what stands at a position, and where that is: line and column count from 1."""
    line = expression.count("\n", 0, position) + 1
    column = position - expression.rfind("\n", 0, position)
    return f"{expression[position : position + 20]!r} at line {line}, column {column}"


def _after_blanks(expression: str, position: int) -> int:
    blanks = _BLANK.match(expression, position)
    assert blanks is not None  # it matches nothing, too
    return blanks.end()


def _token(match: re.Match[str]) -> Token:
    text, position = match[0], match.start()
    match match.lastgroup:
        case "symbol":
            return Token(text, text, position)
        case "name":
            keyword = text.upper()
            return Token(keyword if keyword in KEYWORDS else NAME, text, position)
        case "string":
            return Token(STRING, text[1:-1].replace("''", "'"), position)
        case group:
            assert group is not None  # each alternative is a group
            return Token(_KINDS[group], text, position)
