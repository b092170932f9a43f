"""Random SQL92 expressions and properties, and what RocketMQ makes of them.

An expression is a tree of tuples. ``text`` writes it down, and ``value`` evaluates it as the Java
classes do, by the types that values have at run time; it shares nothing with ``pymq.filter``.
Java values are pairs of a type and a value: ``("Integer", 5)``; NULL is None.
"""

import random
from typing import Any

NAMES = ("a", "b", "c", "d", "_e$1", "TAGS")
STRINGS = (
    *("", "x", "xy", "yx", "it's", "true", "TRUE", "false", "5", "-5", "+5", "5.5", " 5 ", "0"),
    *("-0.0", "0.0", "NaN", "Infinity", "1e3", "5f", "0x1p3", "1_0", "99999999999", "٣", "größe"),
    *("3000000000", "2147483647", "2147483648", "9223372036854775808", "inf", "0x10", "5L", "."),
)
WHOLES = (0, 1, 3, 5, 7, 1000, 2147483647, 2147483648, 3000000000, 9223372036854775807)
FLOATS = ("5.5", "5.", ".5", "5e3", "1E-3", "5.0", "9.3e18", "3000000000.0", "0.1")
LIKE = ("CONTAINS", "STARTSWITH", "ENDSWITH")


class Unselected(Exception):
    """Evaluation fails."""


class Expressions:
    """A source of random expressions that RocketMQ accepts, and of random properties."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def properties(self) -> dict[str, str]:
        draw = self.random
        return {name: draw.choice(STRINGS) for name in NAMES if draw.random() < 0.6}

    def condition(self, depth: int = 4) -> tuple[Any, ...]:
        draw = self.random
        kinds = ["equal", "unequal", "order", "between", "in", "like", "null", "literal", "name"]
        if depth:
            kinds += ["and", "or", "not", "and", "or", "order", "equal", "order"]
        match draw.choice(kinds):
            case "and" | "or" as kind:
                count = draw.randint(2, 4)
                return (kind, *(self.condition(depth - 1) for _ in range(count)))
            case "not":
                return ("not", self.condition(depth - 1))
            case "equal" | "unequal" as kind:
                return (kind, *self._comparable(depth))
            case "order":
                symbol = draw.choice(("<", "<=", ">", ">="))
                return ("order", symbol, self.ordered(depth), self.ordered(depth))
            case "between":
                return self._between(depth)
            case "in":
                values = tuple(draw.choice(STRINGS) for _ in range(draw.randint(1, 6)))
                return ("in", draw.choice(NAMES), values, draw.random() < 0.4)
            case "like":
                searched = draw.choice(("", "x", "y", "5", "xy", "it's", "."))
                return ("like", draw.choice(LIKE), self.any(depth), searched, draw.random() < 0.4)
            case "null":
                return ("null", self.any(depth), draw.random() < 0.5)
            case "literal":
                return ("constant", None) if draw.random() < 0.3 else self._boolean()
            case _:
                return ("name", draw.choice(NAMES))

    def any(self, depth: int) -> tuple[Any, ...]:
        """A condition or another value."""
        draw = self.random
        match draw.randrange(8):
            case 0 if depth:
                return self.condition(depth - 1)
            case 1:
                return self._boolean()
            case 2 | 3:
                return ("constant", ("String", draw.choice(STRINGS)))
            case _:
                return self.ordered(depth)

    def ordered(self, depth: int) -> tuple[Any, ...]:
        """What ``<`` accepts: a number, a property, or the negative of anything."""
        draw = self.random
        match draw.randrange(12):
            case 0 | 1 | 2:
                return self.number()
            case 3 if depth:
                return ("negative", self.any(depth - 1))
            case 4:
                return ("negative", self.number())
            case _:
                return ("name", draw.choice(NAMES))

    def number(self) -> tuple[Any, ...]:
        if self.random.random() < 0.6:
            whole = self.random.choice(WHOLES)
            return ("constant", ("Integer" if whole < 1 << 31 else "Long", whole))
        text = self.random.choice(FLOATS)
        return ("constant", ("Double", float(text)), text)

    def _comparable(self, depth: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        while True:
            left, right = self.any(depth), self.any(depth)
            constants = left[0] == right[0] == "constant"
            if ("constant", None) in (left, right):
                continue
            if constants and left[1][0] == "Boolean" != right[1][0]:
                continue
            return left, right

    def _between(self, depth: int) -> tuple[Any, ...]:
        negated = self.random.random() < 0.4
        while True:
            value, low, high = (self.ordered(depth) for _ in range(3))
            constants = low[0] == high[0] == "constant"
            if negated or not constants or order(high[1], low[1]) >= 0:
                return ("between", value, low, high, negated)

    def _boolean(self) -> tuple[Any, ...]:
        return ("constant", ("Boolean", self.random.random() < 0.5))


def text(tree: tuple[Any, ...]) -> str:
    """Write an expression, with parentheses around everything that is not simple."""
    match tree:
        case ("constant", None):
            return "NULL"
        case ("constant", _, str() as written):
            return written
        case ("constant", ("String", value)):
            return quoted(value)
        case ("constant", (_, value)):
            return str(value).upper()
        case ("name", name):
            return str(name)
        case ("negative", operand):
            return f"- {_inner(operand)}"
        case ("and" | "or" as kind, *parts):
            return f" {kind.upper()} ".join(map(_inner, parts))
        case ("not", operand):
            return f"NOT {_inner(operand)}"
        case ("equal" | "unequal" as kind, left, right):
            return f"{_inner(left)} {'=' if kind == 'equal' else '<>'} {_inner(right)}"
        case ("order", symbol, left, right):
            return f"{_inner(left)} {symbol} {_inner(right)}"
        case ("between", value, low, high, negated):
            word = "NOT BETWEEN" if negated else "BETWEEN"
            return f"{_inner(value)} {word} {_inner(low)} AND {_inner(high)}"
        case ("in", name, values, negated):
            return f"{name} {'NOT ' * negated}IN ({', '.join(map(quoted, values))})"
        case ("like", word, operand, searched, negated):
            return f"{_inner(operand)} {'NOT ' * negated}{word} {quoted(searched)}"
        case ("null", operand, negated):
            return f"{_inner(operand)} IS {'NOT ' * negated}NULL"
    raise AssertionError(tree)


def quoted(value: str) -> str:
    doubled = value.replace("'", "''")
    return f"'{doubled}'"


def _inner(tree: tuple[Any, ...]) -> str:
    return text(tree) if tree[0] in ("constant", "name") else f"({text(tree)})"


def selects(tree: tuple[Any, ...], properties: dict[str, str]) -> bool:
    """Does RocketMQ select a message with these properties?"""
    try:
        return condition(tree, properties) is True
    except Unselected:
        return False


def condition(tree: tuple[Any, ...], properties: dict[str, str]) -> bool | None:
    """The value of what stands where a condition is expected."""
    found = value(tree, properties)
    if tree[0] == "name":
        return None if found is None else False
    if found is None:
        return None
    assert found[0] == "Boolean"
    return bool(found[1])


def value(tree: tuple[Any, ...], properties: dict[str, str]) -> Any:
    match tree:
        case ("constant", constant, *_):
            return constant
        case ("name", name):
            return ("String", properties[name]) if name in properties else None
        case ("negative", operand):
            found = value(operand, properties)
            if found is None or found[0] in ("String", "Boolean"):
                return None
            return (found[0], -found[1])
        case ("like", word, operand, searched, negated):
            if not searched:
                return ("Boolean", False)
            found = value(operand, properties)
            if found is None or found[0] != "String":
                return ("Boolean", False)
            hits = {
                "CONTAINS": searched in found[1],
                "STARTSWITH": found[1][: len(searched)] == searched,
                "ENDSWITH": found[1][-len(searched) :] == searched,
            }
            return ("Boolean", hits[word] != negated)
    truth = _truth(tree, properties)
    return None if truth is None else ("Boolean", truth)


def _truth(tree: tuple[Any, ...], properties: dict[str, str]) -> bool | None:
    match tree:
        case ("and" | "or" as kind, first, second):
            ending = kind == "or"
            one = condition(first, properties)
            if one is ending:
                return ending
            two = condition(second, properties)
            if two is ending:
                return ending
            return None if one is None or two is None else not ending
        case ("and" | "or" as kind, *parts):
            return _truth((kind, (kind, *parts[:-1]), parts[-1]), properties)
        case ("not", operand):
            truth = condition(operand, properties)
            return None if truth is None else not truth
        case ("unequal", left, right):
            return condition(("not", ("equal", left, right)), properties)
        case ("null", operand, negated):
            equal = ("equal", operand, ("constant", None))
            return condition(("not", equal) if negated else equal, properties)
        case ("equal", left, right):
            one, two = value(left, properties), value(right, properties)
            if one is None or two is None:
                return (None if two else True) if one is None else False
            if one == two:
                return True
            return order(one, two) == 0
        case ("order", symbol, left, right):
            one = value(left, properties)
            two = None if one is None else value(right, properties)
            if one is None or two is None:
                return None
            if one[0] == two[0] == "String":
                one, two = (("Double", _double(side[1])) for side in (one, two))
            found = order(one, two)
            return {"<": found < 0, "<=": found <= 0, ">": found > 0, ">=": found >= 0}[symbol]
        case ("between", operand, low, high, negated):
            sides = (("<", low), (">", high)) if negated else ((">=", low), ("<=", high))
            parts = (("order", symbol, operand, side) for symbol, side in sides)
            return condition(("or" if negated else "and", *parts), properties)
        case ("in", name, values, negated):
            if name not in properties:
                return None
            return (properties[name] in values) is not negated
    raise AssertionError(tree)


def order(one: tuple[str, Any], two: tuple[str, Any]) -> int:
    """RocketMQ ComparisonExpression.__compare."""
    (kind, left), (other, right) = one, two
    if kind != other:
        match (kind, other):
            case ("Boolean", "String"):
                raise Unselected
            case ("String", "Boolean"):
                left = left in ("true", "TRUE")
            case ("Boolean", _) | (_, "Boolean"):
                return -1
            case ("String", _):
                left = _converted(left, other)
            case (_, "String"):
                right = _converted(right, kind)
    if isinstance(left, float) or isinstance(right, float):
        left, right = _sortable(float(left)), _sortable(float(right))
    return int(left > right) - int(left < right)


def _sortable(number: float) -> tuple[bool, float, bool]:
    return (number != number, 0.0 if number != number else number, str(number)[0] != "-")


def _converted(string: str, kind: str) -> float:
    if kind == "Double":
        return _double(string)
    bits = 32 if kind == "Integer" else 64
    if string not in WHOLE_STRINGS or not -(2 ** (bits - 1)) <= int(string) < 2 ** (bits - 1):
        raise Unselected
    return int(string)


#: Those of STRINGS that Java takes for whole numbers of any size.
WHOLE_STRINGS = {
    *("5", "-5", "+5", "0", "99999999999", "٣", "3000000000", "2147483647", "2147483648"),
    "9223372036854775808",
}
#: Those that it takes for a Double.
DOUBLE_STRINGS = {
    **{string: float(string) for string in WHOLE_STRINGS - {"٣"}},
    **{string: float(string) for string in ("5.5", "-0.0", "0.0", "NaN", "Infinity", "1e3")},
    " 5 ": 5.0,
    "5f": 5.0,
    "0x1p3": 8.0,
}


def _double(string: str) -> float:
    if string not in DOUBLE_STRINGS:
        raise Unselected
    return DOUBLE_STRINGS[string]


#: Pieces of expressions, well and badly formed.
PIECES = (
    *("a", "b", "c", "TAGS", "_x$1", "NOT", "not", "AND", "OR", "BETWEEN", "IN", "IS", "NULL"),
    *("TRUE", "False", "CONTAINS", "startswith", "EndsWith", "=", "<>", "<", "<=", ">", ">="),
    *("(", ")", ",", "+", "-", "--", "-- x\n", "/* x */", "/**/", "/* * / **/", "/*", "==", "!="),
    *("0", "05", "5", "5L", "5l", "0L", "2147483648", "9223372036854775807", "5x", "0x10", "017"),
    *("9223372036854775808", "5.5", "5.", ".5", "5e3", "5E-3", "5e", "0.0", "1e400", "1e-400"),
    *("'x'", "'it''s'", "''", "''''", "'x", '"x"', "'5'", "'true'", "größe", "a.b", "#", ";"),
    *("\n", "\t", "LIKE", "'x','y'", "('x')", "IS NULL", "IS NOT NULL", "1 AND 5", "5.5 AND 6"),
)


def jumbled(dice: random.Random) -> str:
    """Random pieces; or a proper expression, with some of its pieces lost, moved or exchanged."""
    if dice.random() < 0.3:
        pieces = [dice.choice(PIECES) for _ in range(dice.randint(1, 8))]
    else:
        source = Expressions(dice.randrange(1 << 30))
        pieces = text(source.condition(2)).split(" ")
        for _ in range(dice.randint(1, 3)):
            at = dice.randrange(len(pieces))
            change = dice.choice(["lose", "insert", "replace", "double", "bare"])
            if change == "lose" and len(pieces) > 1:
                del pieces[at]
            elif change == "insert":
                pieces.insert(at, dice.choice(PIECES))
            elif change == "replace":
                pieces[at] = dice.choice(PIECES)
            elif change == "double":
                pieces.insert(at, pieces[at])
            else:
                pieces[at] = pieces[at].strip("()")
    return dice.choice([" ", " ", " ", ""]).join(pieces)
