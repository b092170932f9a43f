"""The grammar of SQL92 filters: text to tree.

::

    or         = and { OR and }
    and        = equality { AND equality }
    equality   = comparison { ( "=" | "<>" ) comparison | IS [ NOT ] NULL }
    comparison = unary { ( ">" | ">=" | "<" | "<=" ) unary
                       | [ NOT ] ( CONTAINS | STARTSWITH | ENDSWITH ) string
                       | [ NOT ] BETWEEN unary AND unary
                       | [ NOT ] IN "(" string { "," string } ")" }
    unary      = ( "+" | "-" | NOT ) unary | primary
    primary    = string | whole | float | TRUE | FALSE | NULL | name | "(" or ")"

As in RocketMQ, NOT binds more tightly than comparisons (``NOT a = 1`` is ``(NOT a) = 1``), and what
follows a complete expression is ignored from its second token on: ``a = 1 b = 2`` is ``a = 1``.
The expression as a whole, and each operand of AND, OR and NOT, is a condition or a property.

Source: RocketMQ SelectorParser.jj; the checks of operands: ComparisonExpression,
ConstantExpression.
"""

import math

from pymq.errors import FilterSyntaxError
from pymq.filter.java_numbers import (
    INTEGER_BITS,
    LONG_BITS,
    order_of_doubles,
)
from pymq.filter.sql_tokens import END, FLOAT, NAME, STRING, WHOLE, Token, place, tokens
from pymq.filter.sql_tree import (
    NUMBERS,
    AllOf,
    AnyOf,
    Cast,
    Constant,
    Equal,
    Kind,
    Member,
    Negative,
    Node,
    Not,
    Ordering,
    Property,
    Search,
    height,
    is_condition,
)

EXPRESSION_LENGTH_MAX = 65_536
#: Parentheses and signs in one another. RocketMQ goes on until its stack overflows.
NESTING_MAX = 64
# What one pair of parentheses can come to: OR, AND, =, <, NOT. Only long chains of comparisons,
# such as a = b = c = ..., go beyond.
_HEIGHT_MAX = 5 * NESTING_MAX

_NULL = Constant(Kind.NULL, None)
_SEARCHES = ("CONTAINS", "STARTSWITH", "ENDSWITH")


def parse(expression: str) -> Node:
    """Return the tree of an expression.

    Raises:
        FilterSyntaxError: it does not parse, compares what has no order, has over
            ``EXPRESSION_LENGTH_MAX`` characters or nests deeper than ``NESTING_MAX``.
    """
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise FilterSyntaxError(
            f"an expression of {len(expression)} characters, at most {EXPRESSION_LENGTH_MAX}"
        )
    parser = _Parser(expression)
    tree = parser.condition(parser.alternatives())
    if height(tree) > _HEIGHT_MAX:
        raise FilterSyntaxError(f"nests deeper than {NESTING_MAX} levels")
    return tree


class _Parser:
    """Descends through one expression; ``_next`` is the token that comes next."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = tokens(expression)
        self._next = next(self._tokens)
        self._nesting = 0

    def alternatives(self) -> Node:
        parts = [self._conjunction()]
        while self._accept("OR"):
            parts.append(self._conjunction())
        return parts[0] if len(parts) == 1 else AnyOf(tuple(map(self.condition, parts)))

    def condition(self, node: Node) -> Node:
        """Make a condition of a node.

        Raises:
            FilterSyntaxError: it is another value.
        """
        if isinstance(node, Property):
            return Cast(node)
        if not is_condition(node):
            raise self._error("expected a condition before it, found a value")
        return node

    def _conjunction(self) -> Node:
        parts = [self._equality()]
        while self._accept("AND"):
            parts.append(self._equality())
        return parts[0] if len(parts) == 1 else AllOf(tuple(map(self.condition, parts)))

    def _equality(self) -> Node:
        left = self._comparison()
        while True:
            if self._accept("="):
                left = self._equal(left)
            elif self._accept("<>"):
                left = Not(self._equal(left))
            elif self._accept("IS"):
                negated = self._accept("NOT")
                self._take("NULL")
                left = Not(Equal(left, _NULL)) if negated else Equal(left, _NULL)
            else:
                return left

    def _equal(self, left: Node) -> Equal:
        right = self._comparison()
        if _NULL in (left, right):
            raise self._error("NULL cannot be compared before it, IS NULL can")
        if _is_boolean(left) and isinstance(right, Constant) and not _is_boolean(right):
            raise self._error("TRUE and FALSE cannot be compared with another literal before it")
        return Equal(left, right)

    def _comparison(self) -> Node:
        left = self._unary()
        while True:
            if self._next.kind in ("<", "<=", ">", ">="):
                symbol = self._take(self._next.kind).text
                left = self._ordering(symbol, left, self._unary())
                continue
            negated = self._accept("NOT")
            if self._next.kind in _SEARCHES:
                word = self._take(self._next.kind).kind
                left = Search(word, left, self._take(STRING).text, negated)
            elif self._accept("BETWEEN"):
                left = self._between(left, negated)
            elif self._accept("IN"):
                left = self._member(left, negated)
            elif negated:
                raise self._error("expected CONTAINS, STARTSWITH, ENDSWITH, BETWEEN or IN")
            else:
                return left

    def _ordering(self, symbol: str, left: Node, right: Node) -> Ordering:
        for side in (left, right):
            number = isinstance(side, Constant) and side.kind in NUMBERS
            if not number and (isinstance(side, Constant) or is_condition(side)):
                raise self._error(f"only numbers and properties have an order ({symbol}) before it")
        return Ordering(symbol, left, right)

    def _between(self, value: Node, negated: bool) -> Node:
        low = self._unary()
        self._take("AND")
        high = self._unary()
        if negated:
            return AnyOf((self._ordering("<", value, low), self._ordering(">", value, high)))
        both = AllOf((self._ordering(">=", value, low), self._ordering("<=", value, high)))
        if isinstance(low, Constant) and isinstance(high, Constant) and not _in_order(low, high):
            raise self._error(f"BETWEEN {low.value} AND {high.value} before it: nothing is between")
        return both

    def _member(self, operand: Node, negated: bool) -> Member:
        self._take("(")
        values = [self._take(STRING).text]
        while self._accept(","):
            values.append(self._take(STRING).text)
        self._take(")")
        if not isinstance(operand, Property):
            raise self._error("expected a property on the left of IN before it")
        return Member(operand, frozenset(values), negated)

    def _unary(self) -> Node:
        sign = self._next.kind
        if sign not in ("+", "-", "NOT"):
            return self._primary()
        self._enter()
        self._take(sign)
        operand = self._unary()
        self._nesting -= 1
        match sign:
            case "-":
                return Negative(operand)
            case "NOT":
                return Not(self.condition(operand))
            case _:
                return operand

    def _primary(self) -> Node:
        token = self._next
        if token.kind == "(":
            self._enter()
            self._advance()
            inner = self.alternatives()
            self._take(")")
            self._nesting -= 1
            return inner
        node = self._operand(token)
        self._advance()
        return node

    def _operand(self, token: Token) -> Node:
        match token.kind:
            case "TRUE" | "FALSE" as word:
                return Constant(Kind.BOOLEAN, word == "TRUE")
            case "NULL":
                return _NULL
            case kind if kind == NAME:
                return Property(token.text)
            case kind if kind == STRING:
                return Constant(Kind.TEXT, token.text)
            case kind if kind == WHOLE:
                return self._whole(token.text)
            case kind if kind == FLOAT:
                return self._float(token.text)
        raise self._error("expected a property, a literal, NOT or '('")

    def _whole(self, text: str) -> Constant:
        digits = text.rstrip("lL")
        # Twenty digits are too many already, and int() refuses thousands of them.
        number = int(digits) if len(digits) < 20 else 1 << LONG_BITS
        if number >= 1 << LONG_BITS - 1:
            raise self._error("not a whole number of 64 bits")
        return Constant(Kind.INTEGER if number < 1 << INTEGER_BITS - 1 else Kind.LONG, number)

    def _float(self, text: str) -> Constant:
        number = float(text)
        if not 0 < number < math.inf:
            raise self._error("expected a float above 0 and below 1.8e308; write 0 for zero")
        return Constant(Kind.DOUBLE, number)

    def _enter(self) -> None:
        self._nesting += 1
        if self._nesting > NESTING_MAX:
            raise self._error(f"nests deeper than {NESTING_MAX} levels")

    def _accept(self, kind: str) -> bool:
        """Take the next token if it is of that kind."""
        if self._next.kind != kind:
            return False
        self._advance()
        return True

    def _take(self, kind: str) -> Token:
        taken = self._next
        if taken.kind != kind:
            raise self._error(f"expected {kind}")
        self._advance()
        return taken

    def _advance(self) -> None:
        self._next = next(self._tokens)

    def _error(self, reason: str) -> FilterSyntaxError:
        """Return an error that says what is wrong with the next token, or right before it."""
        if self._next.kind == END:
            return FilterSyntaxError(f"at the end of the expression: {reason}")
        return FilterSyntaxError(f"{place(self._expression, self._next.position)}: {reason}")


def _is_boolean(node: Node) -> bool:
    return isinstance(node, Constant) and node.kind is Kind.BOOLEAN


def _in_order(low: Constant, high: Constant) -> bool:
    """Tell whether a number is at most another one, each Integer, Long or Double."""
    assert isinstance(low.value, int | float) and isinstance(high.value, int | float)
    if Kind.DOUBLE in (low.kind, high.kind):
        return order_of_doubles(float(low.value), float(high.value)) <= 0
    return low.value <= high.value
