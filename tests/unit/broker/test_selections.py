"""How much of a subscription is taken."""

from typing import Any

import pytest

from pymq.broker.selections import Selections
from pymq.errors import BrokerError
from pymq.filter.sql92 import EXPRESSION_LENGTH_MAX
from pymq.protocol.bodies import Subscription

#: One character each; with what joins them they fill the longest expression.
MOST_TAGS = list(map(chr, range(0x4E00, 0x4E00 + (EXPRESSION_LENGTH_MAX + 2) // 3)))


def selections() -> Selections:
    nothing: Any = None
    return Selections(nothing, nothing, nothing)


def test_all_tags_that_an_expression_can_have_are_taken() -> None:
    most = Subscription.of_tags("T", "||".join(MOST_TAGS), 1)
    assert len(most.expression) == EXPRESSION_LENGTH_MAX
    assert len(most.tag_codes) == len(most.tags) == len(MOST_TAGS)
    selections().check_size(most)


@pytest.mark.parametrize(
    "changes",
    [
        {"tag_codes": frozenset(range(len(MOST_TAGS) + 1))},
        {"tags": frozenset([*MOST_TAGS, "t"])},
        {"tags": frozenset(["t" * EXPRESSION_LENGTH_MAX, "u"])},
        {"expression": "t" * (EXPRESSION_LENGTH_MAX + 1)},
    ],
    ids=["codes", "tags", "characters of tags", "characters"],
)
def test_more_than_an_expression_can_have_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BrokerError, match=f"at most {EXPRESSION_LENGTH_MAX} characters"):
        selections().check_size(Subscription(topic="T", **changes))
