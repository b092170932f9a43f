"""Random expressions on random properties: the compiled filter against a model of RocketMQ's."""

from tests.unit.filter.sql_expressions import Expressions, selects, text

from pymq.filter.evaluate import compile_sql92

EXPRESSIONS = 4_000


def test_random_expressions_select_what_the_model_selects() -> None:
    selected = 0
    for seed in range(EXPRESSIONS):
        source = Expressions(seed)
        tree = source.condition()
        compiled = compile_sql92(text(tree))
        for _ in range(5):
            properties = source.properties()
            expected = selects(tree, properties)
            assert compiled.matches(properties) == expected, (seed, text(tree), properties)
            selected += expected
    assert 0.1 < selected / EXPRESSIONS / 5 < 0.9  # it is not all one answer
