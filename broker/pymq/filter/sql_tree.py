"""SQL92 filters as trees.

A node is a value or a condition; a condition is true, false or unknown. ``a <> 1`` is
``Not(Equal(a, 1))``, ``a BETWEEN 1 AND 5`` is ``AllOf(a >= 1, a <= 5)``, ``a IS NULL`` is
``Equal(a, NULL)``, and a property where a condition is expected is ``Cast(a)``.

Source: RocketMQ org.apache.rocketmq.filter.expression.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias


class Kind(Enum):
    """The type of a value, as Java would have it: ``5`` is an Integer, ``5000000000`` a Long."""

    NULL = auto()
    BOOLEAN = auto()
    TEXT = auto()
    INTEGER = auto()
    LONG = auto()
    DOUBLE = auto()


NUMBERS = frozenset({Kind.INTEGER, Kind.LONG, Kind.DOUBLE})


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal."""

    kind: Kind
    value: None | bool | str | int | float


@dataclass(frozen=True, slots=True)
class Property:
    """The value of a property, a string, or NULL where the message has none of that name."""

    name: str


@dataclass(frozen=True, slots=True)
class Negative:
    """``- operand``: of a number literal; of anything else it is NULL."""

    operand: "Node"


@dataclass(frozen=True, slots=True)
class Cast:
    """A property as a condition: unknown when there is none, else false, since it is a string."""

    operand: Property


@dataclass(frozen=True, slots=True)
class Not:
    """True becomes false and the reverse; unknown stays unknown."""

    operand: "Node"


@dataclass(frozen=True, slots=True)
class Equal:
    """Unknown if only the left side is NULL, false if only the right one is, true if both are."""

    left: "Node"
    right: "Node"


@dataclass(frozen=True, slots=True)
class Ordering:
    """``left symbol right``; unknown if a side is NULL."""

    symbol: str  # one of < <= > >=
    left: "Node"
    right: "Node"


@dataclass(frozen=True, slots=True)
class Member:
    """``operand [NOT] IN (values)``; unknown if the property is NULL.

    Of numbers, all of one kind, it is ``operand = 1 OR operand = 2 OR ...``: see ``sql_folding``.
    """

    operand: Property
    values: frozenset[str | int | float]
    negated: bool
    kind: Kind = Kind.TEXT


@dataclass(frozen=True, slots=True)
class Search:
    """``operand [NOT] CONTAINS 'text'`` and the like.

    Never unknown: with or without NOT it is false of an empty text, and of what is not a string.
    """

    word: str  # CONTAINS, STARTSWITH or ENDSWITH
    operand: "Node"
    text: str
    negated: bool


@dataclass(frozen=True, slots=True)
class AllOf:
    """Conditions joined by AND, evaluated from the left until one is false."""

    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Conditions joined by OR, evaluated from the left until one is true."""

    parts: tuple["Node", ...]


Node: TypeAlias = (
    Constant | Property | Negative | Cast | Not | Equal | Ordering | Member | Search | AllOf | AnyOf
)


def is_condition(node: Node) -> bool:
    """Tell whether a node is true, false or unknown, and never another value."""
    match node:
        case Constant(kind=kind):
            return kind in (Kind.BOOLEAN, Kind.NULL)
        case Property() | Negative():
            return False
        case _:
            return True


def children(node: Node) -> tuple[Node, ...]:
    """Return the nodes right below one."""
    match node:
        case Constant() | Property():
            return ()
        case Equal(left=left, right=right) | Ordering(left=left, right=right):
            return left, right
        case AllOf(parts=parts) | AnyOf(parts=parts):
            return parts
        case _:
            return (node.operand,)


def height(tree: Node) -> int:
    """Return how many nodes lie on the longest way down, without recursion."""
    level: tuple[Node, ...] = (tree,)
    count = 0
    while level:
        count += 1
        level = tuple(child for node in level for child in children(node))
    return count
