"""SQL92 filters as functions of a message's properties.

Each node of the tree becomes one function, made once; which comparison of Java applies is known by
then, since every property is a string. A value is None for NULL, and a condition None for unknown.

What RocketMQ does, odd as it is:

* The literal decides how a property is read: ``a > 5`` takes ``'5.5'`` for an error, ``a > 5.0``
  does not. ``a > b`` reads both as Double, ``a = b`` compares strings.
* What cannot be read, or compared (``TRUE = a``), is an error, and the message is not selected,
  whatever stands beside it in the expression; only what AND and OR had no need to look at is safe.
* ``a <> 1`` is unknown where there is no ``a``, ``1 <> a`` is true, and ``a = b`` is true where
  both are missing.

Source: RocketMQ ComparisonExpression, LogicExpression, UnaryExpression.
"""

import operator
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from pymq.errors import FilterSyntaxError
from pymq.filter.java_numbers import (
    INTEGER_BITS,
    LONG_BITS,
    java_double,
    java_whole,
    order_of_doubles,
    order_of_wholes,
)
from pymq.filter.sql92 import parse
from pymq.filter.sql_folding import folded, weight
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
    children,
)

Properties: TypeAlias = Mapping[str, str]
# The values of one kind are of one Python type; which, only the tables below know.
_Value: TypeAlias = Callable[[Properties], Any]
_Condition: TypeAlias = Callable[[Properties], bool | None]
_Order: TypeAlias = Callable[[Any, Any], int]


#: Neutral in AND and in OR.
_TRUE, _FALSE = Constant(Kind.BOOLEAN, True), Constant(Kind.BOOLEAN, False)


class SqlFilter:
    """One compiled filter.

    Attributes:
        expression: what it was compiled from.
        names: the properties that it reads: name as it is stored -> name.
        weight: what one message costs: about so many half microseconds.
    """

    __slots__ = ("_condition", "expression", "names", "weight")

    def __init__(
        self, expression: str, condition: _Condition, names: Iterable[str], weight: int = 1
    ) -> None:
        self.expression = expression
        self.names = {name.encode(): name for name in names}
        self.weight = weight
        self._condition = condition

    def matches(self, properties: Properties) -> bool:
        """Tell whether a message with these properties is selected.

        Args:
            properties: of the message; those in ``names`` are enough.
        """
        try:
            return self._condition(properties) is True
        except ValueError:  # a property cannot be compared
            return False

    def select(self, properties: Properties) -> bool:
        """Do the same, but say what cannot be compared.

        Raises:
            ValueError: the message is not selected, because a property of it cannot be compared.
        """
        return self._condition(properties) is True


Compiled: TypeAlias = SqlFilter | FilterSyntaxError
#: Expressions that were compiled, the one that was asked for last at the end.
_known: OrderedDict[str, Compiled] = OrderedDict()
_KNOWN_COUNT = 100


def compile_sql92(expression: str) -> SqlFilter:
    """Return the filter for an expression.

    Raises:
        FilterSyntaxError: it does not parse, or is too long or too deep.
    """
    tree = folded(parse(expression))
    return SqlFilter(expression, _function(tree), _names(tree), weight(tree))


def find_sql92(expression: str) -> Compiled:
    """Return the filter for an expression, or why there is none.

    The latest ones are remembered, as in RocketMQ: the same expression is asked for again.
    """
    return known_sql92(expression) or remember_sql92(expression, try_sql92(expression))


def known_sql92(expression: str) -> Compiled | None:
    """Return what ``find_sql92`` remembers of an expression, if anything."""
    found = _known.pop(expression, None)
    return None if found is None else remember_sql92(expression, found)


def try_sql92(expression: str) -> Compiled:
    """Return the filter for an expression, or why there is none; for any thread."""
    try:
        return compile_sql92(expression)
    except FilterSyntaxError as error:
        return error


def remember_sql92(expression: str, found: Compiled) -> Compiled:
    """Have ``find_sql92`` remember what was found; return it."""
    _known[expression] = found
    if len(_known) > _KNOWN_COUNT:
        _known.popitem(last=False)
    return found


def _names(root: Node) -> Iterator[str]:
    """Yield the names of the properties in a tree."""
    nodes = [root]
    while nodes:
        node = nodes.pop()
        if isinstance(node, Property):
            yield node.name
        nodes += children(node)


def _function(node: Node) -> _Value:
    match node:
        case Constant(value=value):
            return lambda properties: value
        case Property(name=name):
            return lambda properties: properties.get(name)
        case Negative():
            return _negative(node)
        case Cast(operand=Property(name=name)):
            return lambda properties: False if name in properties else None
        case Not(operand=operand):
            return _negated(_function(operand))
        case Equal(left=Property(name=name), right=Constant(value=None)):
            return lambda properties: properties.get(name) is None
        case Equal(left=left, right=right):
            order = _EQUALITIES.get((_kind(left), _kind(right)), _incomparable)
            return _equal(_function(left), _function(right), order)
        case Ordering(symbol=symbol, left=left, right=right):
            order = _ORDERS.get((_kind(left), _kind(right)), _incomparable)
            return _ordered(_function(left), _function(right), order, _SYMBOLS[symbol])
        case Member():
            return _member(node)
        case Search():
            return _search(node)
        case AllOf(parts=parts):
            return _all(tuple(_function(one) for one in parts if one != _TRUE))
        case AnyOf(parts=parts):
            return _any(tuple(_function(one) for one in parts if one != _FALSE))


def _kind(node: Node) -> Kind:
    """Return the kind of all values of a node that are not NULL."""
    match node:
        case Constant(kind=kind):
            return kind
        case Property():
            return Kind.TEXT
        case Negative(operand=operand):
            kind = _kind(operand)
            return kind if kind in NUMBERS else Kind.NULL
        case _:
            return Kind.BOOLEAN


def _negative(node: Negative) -> _Value:
    operand = _function(node.operand)
    if _kind(node) in NUMBERS:
        number = -operand({})
        return lambda properties: number

    def nothing(properties: Properties) -> None:
        operand(properties)  # which may fail

    return nothing


def _negated(operand: _Condition) -> _Condition:
    def negated(properties: Properties) -> bool | None:
        value = operand(properties)
        return None if value is None else not value

    return negated


def _equal(left: _Value, right: _Value, order: _Order) -> _Condition:
    def equal(properties: Properties) -> bool | None:
        first = left(properties)
        second = right(properties)
        if first is None:
            return True if second is None else None
        return False if second is None else order(first, second) == 0

    return equal


def _ordered(
    left: _Value, right: _Value, order: _Order, holds: Callable[[int, int], bool]
) -> _Condition:
    def ordered(properties: Properties) -> bool | None:
        first = left(properties)
        if first is None:
            return None
        second = right(properties)
        return None if second is None else holds(order(first, second), 0)

    return ordered


def _member(node: Member) -> _Condition:
    name, values, negated = node.operand.name, node.values, node.negated
    if node.kind is not Kind.TEXT:
        return _number_member(name, values, negated, _READ[node.kind])

    def member(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else (value in values) is not negated

    return member


def _number_member(
    name: str, values: frozenset[str | int | float], negated: bool, read: Callable[[str], float]
) -> _Condition:
    # Where Java's order of Doubles differs from Python's, at zeros and NaN, no literal is a Double.
    def member(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else (read(value) in values) is not negated

    return member


def _search(node: Search) -> _Condition:
    if not node.text:  # what it is asked of is not even looked at
        return lambda properties: False
    operand, text, negated = _function(node.operand), node.text, node.negated
    found = _SEARCHES[node.word]

    def search(properties: Properties) -> bool:
        value = operand(properties)
        return isinstance(value, str) and found(value, text) is not negated

    return search


def _all(parts: tuple[_Condition, ...]) -> _Condition:
    def all_of(properties: Properties) -> bool | None:
        unknown = False
        for part in parts:
            value = part(properties)
            if value is False:
                return False
            if value is None:
                unknown = True
        return None if unknown else True

    return all_of


def _any(parts: tuple[_Condition, ...]) -> _Condition:
    def any_of(properties: Properties) -> bool | None:
        unknown = False
        for part in parts:
            value = part(properties)
            if value:
                return True
            if value is None:
                unknown = True
        return None if unknown else False

    return any_of


def _incomparable(left: object, right: object) -> int:
    raise ValueError(f"{left!r} cannot be compared with {right!r}")


def _wholes_after(read: Callable[[str], int]) -> _Order:
    return lambda left, right: order_of_wholes(read(left), right)


def _doubles(left: float, right: float) -> int:
    return order_of_doubles(float(left), float(right))


def _as_integer(text: str) -> int:
    return java_whole(text, INTEGER_BITS)


def _as_long(text: str) -> int:
    return java_whole(text, LONG_BITS)


def _as_boolean(text: str) -> bool:
    return text.lower() == "true"


def _reversed(order: _Order) -> _Order:
    return lambda left, right: -order(right, left)


def _unlike(left: object, right: object) -> int:
    return -1


_SYMBOLS: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SEARCHES: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
_TEXT_TO: dict[Kind, _Order] = {
    Kind.INTEGER: _wholes_after(_as_integer),
    Kind.LONG: _wholes_after(_as_long),
    Kind.DOUBLE: lambda left, right: order_of_doubles(java_double(left), right),
}
_READ: dict[Kind, Callable[[str], float]] = {
    Kind.INTEGER: _as_integer,
    Kind.LONG: _as_long,
    Kind.DOUBLE: java_double,
}
_WHOLES = (Kind.INTEGER, Kind.LONG)
# (kind of the left, of the right value) -> -1, 0 or 1, as compareTo after Java's conversions.
_NUMBER_ORDERS: dict[tuple[Kind, Kind], _Order] = {
    **{(left, right): order_of_wholes for left in _WHOLES for right in _WHOLES},
    **{(Kind.DOUBLE, kind): _doubles for kind in NUMBERS},
    **{(kind, Kind.DOUBLE): _doubles for kind in NUMBERS},
    **{(Kind.TEXT, kind): order for kind, order in _TEXT_TO.items()},
    **{(kind, Kind.TEXT): _reversed(order) for kind, order in _TEXT_TO.items()},
}
_ORDERS: dict[tuple[Kind, Kind], _Order] = {
    **_NUMBER_ORDERS,
    (Kind.TEXT, Kind.TEXT): lambda left, right: order_of_doubles(
        java_double(left), java_double(right)
    ),
}
# A Boolean on the left of a string is an error: there RocketMQ converts the wrong side.
_EQUALITIES: dict[tuple[Kind, Kind], _Order] = {
    **_NUMBER_ORDERS,
    **{(Kind.BOOLEAN, kind): _unlike for kind in NUMBERS},
    **{(kind, Kind.BOOLEAN): _unlike for kind in NUMBERS},
    (Kind.BOOLEAN, Kind.BOOLEAN): order_of_wholes,
    (Kind.TEXT, Kind.TEXT): lambda left, right: 0 if left == right else 1,
    (Kind.TEXT, Kind.BOOLEAN): lambda left, right: order_of_wholes(_as_boolean(left), right),
}
