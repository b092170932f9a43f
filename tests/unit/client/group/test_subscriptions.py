"""What consumers may subscribe to."""

from typing import Any

import pytest

from pymq.client.group.subscriptions import subscription_of
from pymq.errors import FilterSyntaxError, LocalProtocolError
from pymq.protocol.bodies import Subscription


def test_tags_or_an_expression() -> None:
    assert subscription_of("T", "a || b", None, 5) == Subscription.of_tags("T", "a || b", 5)
    found = subscription_of("T", "*", "a > 5", 7)
    assert (found.expression, found.expression_type, found.version) == ("a > 5", "SQL92", 7)
    assert not found.tags and not found.tag_codes


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((5, "*", None), LocalProtocolError),
        (("T", 5, None), LocalProtocolError),
        (("", "*", None), LocalProtocolError),
        (("T", "a > 5", None), LocalProtocolError),
        (("T", "a", "a > 5"), LocalProtocolError),
        (("T", "*", 5), LocalProtocolError),
        (("T", "*", "a >"), FilterSyntaxError),
        (("T", "*", ""), FilterSyntaxError),
    ],
)
def test_what_is_refused(arguments: tuple[Any, Any, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        subscription_of(*arguments, 1)
