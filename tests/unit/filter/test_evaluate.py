"""What compiled filters select, oddities of RocketMQ included."""

import time

import pytest

from pymq.errors import FilterSyntaxError
from pymq.filter.evaluate import compile_sql92
from pymq.filter.sql92 import NESTING_MAX

PRESENT = {"a": "5", "s": "text", "n": "", "d": "5.0", "t": "True"}

SELECTED = """
    a = 5
    a = '5'
    5 = a
    a = 5.0
    a >= 5
    5 <= a
    a > -6
    a < 5000000000
    a BETWEEN 5 AND 5
    a NOT BETWEEN 6 AND 7
    a NOT BETWEEN 7 AND 6
    a IN ('4', '5')
    s NOT IN ('4', '5')
    a > missing OR a = 5
    d > 4.9
    d = 5.0
    d > a = FALSE
    a <= d
    t = TRUE
    t <> FALSE
    s = FALSE
    1 <> missing
    missing = missing
    missing = gone
    missing <> gone = FALSE
    missing IS NULL
    a IS NOT NULL
    NULL IS NULL
    n IS NOT NULL
    n = ''
    NOT (a = 6)
    (NOT a) = TRUE
    NOT a
    s CONTAINS 'ex'
    s STARTSWITH 'te'
    s ENDSWITH 'xt'
    s NOT CONTAINS 'x y'
    'abc' CONTAINS 'b'
    TRUE
    5 = 5
    -5 < -4
    -(-5) = a
    --5 = a
    a = 6 OR a = 5
    a = 5 OR s > 1
    (5 = TRUE) = FALSE
    NOT (TRUE = (a = 6))
"""

NOT_SELECTED = """
    a = 6
    a <> 5
    a
    NULL
    FALSE
    NOT NULL
    missing
    NOT missing
    missing = 1
    missing <> 1
    1 = missing
    missing > 1
    1 > missing
    NOT (missing > 1)
    missing IN ('x')
    missing NOT IN ('x')
    missing CONTAINS 'x'
    missing NOT CONTAINS 'x'
    missing BETWEEN 1 AND 5
    missing NOT BETWEEN 1 AND 5
    missing <> gone
    s CONTAINS ''
    s NOT CONTAINS ''
    5 CONTAINS '5'
    5 NOT CONTAINS 'x'
    -a = -5
    -a IS NOT NULL
    a = TRUE
    5 = TRUE
    d = a
    s > 1
    s > 1 OR a = 5
    NOT (s > 1)
    d > 4
    TRUE = t
    TRUE <> t
    n > 1
    s = 5 OR TRUE
    -(s = 5) IS NULL
"""


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


@pytest.mark.parametrize("expression", lines(SELECTED))
def test_selected(expression: str) -> None:
    assert compile_sql92(expression).matches(PRESENT)


@pytest.mark.parametrize("expression", lines(NOT_SELECTED))
def test_not_selected(expression: str) -> None:
    assert not compile_sql92(expression).matches(PRESENT)


def test_the_expression_is_kept() -> None:
    assert compile_sql92("a = 5 rest").expression == "a = 5 rest"


def test_the_deepest_tree_is_evaluated_and_one_that_is_deeper_refused() -> None:
    inner = "TRUE"
    for _ in range(NESTING_MAX // 2):
        inner = f"(NOT {inner} = TRUE AND TRUE OR FALSE)"
    assert compile_sql92(inner).matches({})
    with pytest.raises(FilterSyntaxError):
        compile_sql92("(" * 30_000 + "a")


def test_wide_expressions_do_not_take_for_ever() -> None:
    started = time.thread_time()
    wide = compile_sql92("a=1" + " OR a=1" * 9_000 + " OR a=5")
    assert wide.matches(PRESENT)
    compile_sql92("a IN ('x'" + ",'x'" * 16_000 + ")")
    compile_sql92("+" * 60 + "a IS NULL")
    assert time.thread_time() - started < 30


def test_a_filter_knows_which_properties_it_reads() -> None:
    found = compile_sql92("a > 5 AND TRUE OR NOT (b IS NULL OR c IN ('x')) AND d CONTAINS 'e'")
    assert found.names == {b"a": "a", b"b": "b", b"c": "c", b"d": "d"}
    with pytest.raises(ValueError, match=r"5\.5"):
        found.select({"a": "5.5"})
