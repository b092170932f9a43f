"""What consumers subscribe to: tags, or an SQL92 expression."""

from pymq.errors import LocalProtocolError
from pymq.filter.tags import check_tags
from pymq.protocol.bodies import Subscription
from pymq.protocol.names import check_topic


def wants_the_same(one: Subscription, other: Subscription) -> bool:
    """Do two subscriptions to a topic let the same messages through?"""
    if one.expression_type != other.expression_type:
        return False
    return one.tags == other.tags and (bool(one.tags) or one.expression == other.expression)


def subscription_of(topic: object, tags: object, sql: object, version: int) -> Subscription:
    """Return the subscription to a topic.

    Args:
        topic: which.
        tags: ``*``, or the tags wanted, joined by ``||``.
        sql: an expression over the messages' properties instead; None: only the tags count.
        version: ms; a later one replaces an earlier one.

    Raises:
        LocalProtocolError: the topic is not legal, or the tags are SQL or not an expression, or
            there are both tags and an SQL expression.
        FilterSyntaxError: the SQL expression does not parse.
    """
    if not isinstance(topic, str) or not isinstance(tags, str):
        raise LocalProtocolError(
            f"subscription to {topic!r} with tags {tags!r}, expected two strings, such as "
            "'orders' and 'TagA || TagB'"
        )
    check_topic(topic)
    if sql is None:
        check_tags(topic, tags)
        return Subscription.of_tags(topic, tags, version)
    if not isinstance(sql, str) or tags != "*":
        raise LocalProtocolError(
            f"subscription to {topic!r} with tags {tags!r} and sql {sql!r:.200}, expected either "
            "tags or an expression, such as \"TAGS = 'TagA' AND amount > 100\""
        )
    from pymq.filter.sql92 import parse  # as long as half of the client takes to import

    parse(sql)
    return Subscription(topic=topic, expression=sql, expression_type="SQL92", version=version)
