"""Folded lists of comparisons: they decide what the comparisons one by one decide."""

import random

import pytest

from pymq.filter.evaluate import _function, compile_sql92
from pymq.filter.sql92 import parse
from pymq.filter.sql_folding import folded, weight
from pymq.filter.sql_tree import AnyOf, Kind, Member, Node, Property

LITERALS = ("'1'", "'x'", "''", "'2.5'", "1", "2", "0", "3000000000", "2.5", "1.0", "1e3", "TRUE")
VALUES = ("1", "2", "x", "2.5", "1.0", "0", "-0.0", "NaN", "3000000000", "true", "1f", " 1", "+1")
SHAPES = (
    *("{name} = {one}", "{name} = {one}", "{name} <> {one}", "{name} <> {one}", "{one} = {name}"),
    *("{name} IN ('1', 'x')", "{name} NOT IN ('1', 'x')", "{name} IS NULL", "{name} > 1"),
    *("NOT ({name} = {one})", "({name} = {one} OR {name} = 'x')", "{name} CONTAINS '1'"),
)


def outcome(node: Node, properties: dict[str, str]) -> bool | str | None:
    try:
        found = _function(node)(properties)
    except ValueError:
        return "fails"
    assert found in (True, False, None)
    return bool(found) if found is not None else None


def test_folded_conditions_decide_the_same(seed: int) -> None:
    dice = random.Random(seed)
    shorter = 0
    for _ in range(600):
        parts = [
            dice.choice(SHAPES).format(name=dice.choice("ab"), one=dice.choice(LITERALS))
            for _ in range(dice.randint(2, 7))
        ]
        word = dice.choice((" OR ", " AND "))
        tree = parse(f"NOT ({word.join(parts)})" if dice.random() < 0.2 else word.join(parts))
        short = folded(tree)
        shorter += weight(short) < weight(tree)
        for _ in range(8):
            properties = {name: dice.choice(VALUES) for name in "ab" if dice.random() < 0.8}
            assert outcome(short, properties) == outcome(tree, properties), (tree, properties)
    assert shorter > 50


def test_thousands_of_values_are_one_look_into_a_set() -> None:
    texts = " OR ".join(f"n = '{number}'" for number in range(4_000))
    assert folded(parse(texts)) == Member(
        Property("n"), frozenset(map(str, range(4_000))), negated=False
    )
    compiled = compile_sql92(texts)
    assert compiled.weight == 1
    assert [compiled.matches({"n": one}) for one in ("0", "3999", "4000", "-1")] == [
        *(True, True, False, False),
    ]
    assert folded(parse("n = 1 OR n = 2 OR n = 3")) == Member(
        Property("n"), frozenset((1, 2, 3)), negated=False, kind=Kind.INTEGER
    )
    assert weight(folded(parse("a <> 'x' AND b <> 'y' AND a NOT IN ('z') AND b <> '1'"))) == 3


@pytest.mark.parametrize(
    "kept",
    [
        "a = '1' OR b > 5 OR a = '2'",  # b > 5 may fail before a = '2' is looked at
        "a = 1 OR b = 1 OR a = 2",
        "a = 1 OR a = 3000000000",  # an Integer and a Long
        "'1' = a OR '2' = a",
    ],
)
def test_what_may_fail_in_between_is_not_folded(kept: str) -> None:
    tree = folded(parse(kept))
    assert isinstance(tree, AnyOf)
    assert len(tree.parts) == len(kept.split(" OR "))
