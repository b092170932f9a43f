"""What parses, to which tree, and what does not."""

import pytest

from pymq.errors import FilterSyntaxError
from pymq.filter.sql92 import EXPRESSION_LENGTH_MAX, NESTING_MAX, parse
from pymq.filter.sql_tree import (
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
)

A, B = Property("a"), Property("b")
NULL = Constant(Kind.NULL, None)
ONE, FIVE = Constant(Kind.INTEGER, 1), Constant(Kind.INTEGER, 5)


@pytest.mark.parametrize(
    ("expression", "tree"),
    [
        ("a", Cast(A)),
        ("TRUE", Constant(Kind.BOOLEAN, True)),
        ("null", NULL),
        ("a = 1", Equal(A, ONE)),
        ("a<>1", Not(Equal(A, ONE))),
        ("a = 'it''s'", Equal(A, Constant(Kind.TEXT, "it's"))),
        ("a = ''''", Equal(A, Constant(Kind.TEXT, "'"))),
        ("a = 2147483647", Equal(A, Constant(Kind.INTEGER, 2147483647))),
        ("a = 2147483648", Equal(A, Constant(Kind.LONG, 2147483648))),
        ("a = 1L", Equal(A, ONE)),
        ("a = 5.", Equal(A, Constant(Kind.DOUBLE, 5.0))),
        ("a = .5e1", Equal(A, Constant(Kind.DOUBLE, 5.0))),
        ("a = 5E0", Equal(A, Constant(Kind.DOUBLE, 5.0))),
        ("a = 05.5", Equal(A, Constant(Kind.DOUBLE, 5.5))),
        ("a = 0", Equal(A, Constant(Kind.INTEGER, 0))),
        ("a = + 5", Equal(A, FIVE)),
        ("a = -5", Equal(A, Negative(FIVE))),
        ("a is null", Equal(A, NULL)),
        ("a IS NOT NULL", Not(Equal(A, NULL))),
        ("a BETWEEN 1 AND 5", AllOf((Ordering(">=", A, ONE), Ordering("<=", A, FIVE)))),
        ("a NOT BETWEEN 5 AND 1", AnyOf((Ordering("<", A, FIVE), Ordering(">", A, ONE)))),
        ("a BETWEEN b AND 1", AllOf((Ordering(">=", A, B), Ordering("<=", A, ONE)))),
        ("a IN ('x','y')", Member(A, frozenset({"x", "y"}), False)),
        ("(a) NOT IN ('x')", Member(A, frozenset({"x"}), True)),
        ("a contains 'x'", Search("CONTAINS", A, "x", False)),
        ("a NOT StartsWith 'x'", Search("STARTSWITH", A, "x", True)),
        ("5 ENDSWITH ''", Search("ENDSWITH", FIVE, "", False)),
        ("a AND b", AllOf((Cast(A), Cast(B)))),
        ("a OR b AND NOT a", AnyOf((Cast(A), AllOf((Cast(B), Not(Cast(A))))))),
        ("(a OR b) AND a", AllOf((AnyOf((Cast(A), Cast(B))), Cast(A)))),
        ("NOT a = 1", Equal(Not(Cast(A)), ONE)),
        ("a > 1 = TRUE", Equal(Ordering(">", A, ONE), Constant(Kind.BOOLEAN, True))),
        ("1 = TRUE", Equal(ONE, Constant(Kind.BOOLEAN, True))),
        ("a = b = 1", Equal(Equal(A, B), ONE)),
        ("- -a = 1", Equal(Negative(Negative(A)), ONE)),
        ("a = --5", Equal(A, Negative(Negative(FIVE)))),  # no end of line, no comment
        ("a -- = 1\n = /* 2 */ 5", Equal(A, FIVE)),
        ("a /***/ = /* * / **/5", Equal(A, FIVE)),
        ("_$1 = 1", Equal(Property("_$1"), ONE)),
        ("a_in = 1", Equal(Property("a_in"), ONE)),
    ],
)
def test_trees(expression: str, tree: Node) -> None:
    assert parse(expression) == tree


@pytest.mark.parametrize(
    "expression",
    ["a = 1 b = 2", "a = 1)", "a = 1 ) #", "a = 1 TRUE", "a = 1 1 ;", "a = 1, %", "a = 1x"],
)
def test_what_follows_a_complete_expression_is_ignored(expression: str) -> None:
    assert parse(expression) == Equal(A, ONE)


def test_a_leading_zero_ends_a_number() -> None:
    assert parse("a = 05") == Equal(A, Constant(Kind.INTEGER, 0))


@pytest.mark.parametrize(
    "expression",
    """
    5
    'x'
    -a
    a =
    a = = 1
    a == 1
    a != 1
    a = "x"
    a = 'x
    a = 1 ;
    a = 1 'x
    a.b = 1
    größe = 1
    a AND
    AND a
    a AND 5
    5 OR a
    NOT 5
    NOT 'x'
    (a = 1
    ()
    a = NULL
    NULL = a
    a <> NULL
    TRUE = 5
    TRUE = 'x'
    a > 'x'
    'x' < a
    a > TRUE
    a > NULL
    a > (b = 1)
    (a = 1) > b
    a > 1 > 2
    a BETWEEN 5 AND 1
    a BETWEEN 5.5 AND 5
    a BETWEEN 'a' AND 'b'
    a BETWEEN NULL AND 1
    a BETWEEN 1
    (a = 1) BETWEEN 1 AND 2
    a IN ()
    a IN (1)
    a IN ('x',)
    a IN ('x'
    a IN 'x'
    'x' IN ('x')
    -a IN ('x')
    a NOT 'x'
    a NOT NULL
    a IS 5
    a IS NOT 5
    a IS TRUE
    a CONTAINS b
    a NOT LIKE 'x'
    a = 9223372036854775808
    a = 0.0
    a = 1e400
    a = 1e-400
    a /* b = 1
    a * 2 = 4
    """.strip().splitlines(),
)
def test_what_does_not_parse(expression: str) -> None:
    with pytest.raises(FilterSyntaxError):
        parse(expression)


def test_errors_say_where() -> None:
    with pytest.raises(FilterSyntaxError, match=r"'BETWEEN 5' at line 2, column 4: .*'\('"):
        parse("a =\n   BETWEEN 5")
    with pytest.raises(FilterSyntaxError, match=r"unexpected character '#b' at line 1, column 3"):
        parse("a #b")
    with pytest.raises(FilterSyntaxError, match="at the end of the expression: expected"):
        parse("")


@pytest.mark.parametrize("nested", ["({})", "NOT {}", "- {}", "+ {}"])
def test_nesting_has_a_limit(nested: str) -> None:
    def expression(depth: int) -> str:
        inner = "a"
        for _ in range(depth):
            inner = nested.format(inner)
        return f"{inner} IS NULL"

    parse(expression(NESTING_MAX))
    for depth in (NESTING_MAX + 1, 16_000):
        with pytest.raises(FilterSyntaxError, match="nests deeper than 64 levels"):
            parse(expression(depth))


def test_long_chains_of_comparisons_have_a_limit() -> None:
    parse("a" + " = b" * NESTING_MAX)
    with pytest.raises(FilterSyntaxError, match="nests deeper than 64 levels"):
        parse("a" + " = b" * 16_000)


def test_expressions_are_as_wide_as_they_may_be_long() -> None:
    longest = "a=1" + " OR a=1" * ((EXPRESSION_LENGTH_MAX - 3) // 7)
    tree = parse(longest.ljust(EXPRESSION_LENGTH_MAX))
    assert isinstance(tree, AnyOf) and len(tree.parts) == 9362
    with pytest.raises(FilterSyntaxError, match="65537 characters, at most 65536"):
        parse(longest.ljust(EXPRESSION_LENGTH_MAX + 1))
