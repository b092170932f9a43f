"""Attributes of topics and groups: which there are, and what a request may change.

A request gives ``+key=value`` to set and ``-key`` to remove an attribute, separated by commas, or a
table of ``+key`` and ``-key`` with values. They are stored without the sign.

``message.type`` is kept for those who ask: a broker of 5.x compares it with nothing, only the proxy
in front of it does. Priorities (5.4) and lite topics (5.5) are not there: their attributes are
refused by name.

Source: RocketMQ AttributeParser, AttributeUtil, TopicAttributes, SubscriptionGroupAttributes.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from pymq.errors import BrokerError, refusal
from pymq.protocol.codes import ResponseCode

_LONG_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute that there is.

    Attributes:
        is_changeable: may it be set or removed once its owner exists?
        check: raises BrokerError for a value that it cannot have.
    """

    is_changeable: bool
    check: Callable[[str], None]


def _one_of(*known: str, unserved: Collection[str]) -> Callable[[str], None]:
    """Return the check of an enumeration.

    Args:
        known: RocketMQ's values, in the order in which 5.3 lists them.
        unserved: those that this broker cannot keep its word about, also of later versions.
    """

    def check(value: str) -> None:
        if value in unserved:
            others = ", ".join(one for one in known if one not in unserved)
            raise _refused(f"{value} is not supported by this broker, only {others}")
        if value not in known:
            raise _refused(f"value is not in set: [{', '.join(known)}]")

    return check


def _number_from(first: int) -> Callable[[str], None]:
    def check(value: str) -> None:
        try:
            number = int(value)
        except ValueError as error:
            raise _refused(f'For input string: "{value}"') from error
        if not first <= number <= _LONG_MAX:
            raise _refused(f"value is not in range({first}, {_LONG_MAX})")

    return check


def _unserved(what: str, *keys: str) -> dict[str, Attribute]:
    """Return attributes of what this broker does not have: no value of theirs is taken."""

    def attribute(key: str) -> Attribute:
        def check(value: str) -> None:
            raise _refused(f"{key} is not supported by this broker: it has no {what}")

        return Attribute(True, check)

    return {key: attribute(key) for key in keys}


MESSAGE_TYPE = "message.type"
_MIXED = "MIXED"

TOPIC_ATTRIBUTES: Mapping[str, Attribute] = {
    "queue.type": Attribute(False, _one_of("SimpleCQ", "BatchCQ", unserved={"BatchCQ"})),
    "cleanup.policy": Attribute(False, _one_of("COMPACTION", "DELETE", unserved={"COMPACTION"})),
    MESSAGE_TYPE: Attribute(
        True,
        _one_of(
            *("UNSPECIFIED", "TRANSACTION", "FIFO", _MIXED, "DELAY", "NORMAL"),
            unserved={_MIXED, "PRIORITY", "LITE"},
        ),
    ),
    "reserve.time": Attribute(True, _number_from(-1)),
    **_unserved("lite topics", "lite.topic.expiration"),
}
GROUP_ATTRIBUTES: Mapping[str, Attribute] = {
    **_unserved("priorities", "priority.factor"),
    **_unserved(
        "lite topics",
        "lite.bind.topic",
        "lite.sub.client.max.event.cnt",
        "lite.sub.client.quota",
        "lite.sub.model",
        "lite.sub.reset.offset.exclusive",
        "lite.sub.reset.offset.unsubscribe",
        "lite.sub.wildcard",
    ),
}


def parse_changes(text: str | None) -> dict[str, str]:
    """Return the table of a text: ``+key`` or ``-key`` to value.

    Raises:
        BrokerError: it is not such a text.
    """
    changes: dict[str, str] = {}
    for change in (text or "").split(",") if text else ():
        key, has_value, value = change.partition("=")
        if has_value and ("+" not in key or not value):
            raise _refused(f"add/alter attribute format is wrong: {key}")
        if not has_value and "-" not in key:
            raise _refused(f"delete attribute format is wrong: {key}")
        if key in changes:
            raise _refused(f"key duplication: {key}")
        changes[key] = value
    return changes


def changed(
    known: Mapping[str, str] | None,
    changes: Mapping[str, str],
    attributes: Mapping[str, Attribute],
) -> dict[str, str]:
    """Return the attributes of a topic or group after changes.

    Args:
        known: what it has; None: it is being created.
        changes: as ``parse_changes`` returns them.
        attributes: which there are.

    Raises:
        BrokerError: one of the changes is impossible; none is made then.
    """
    if attributes is TOPIC_ATTRIBUTES and changes.get("+" + MESSAGE_TYPE) == _MIXED:
        raise refusal(ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported.")
    found = dict(known or {})
    seen: set[str] = set()
    for signed, value in changes.items():
        sign, key = signed[:1], signed[1:]
        if not key or "+" in key or "-" in key:
            raise _refused("kv string format wrong.")
        if key in seen:
            raise _refused(f"alter duplication key. key: {key}")
        seen.add(key)
        if known is None and sign != "+":
            raise _refused(f"only add attribute is supported while creating topic. key: {key}")
        if sign not in ("+", "-"):
            raise _refused(f"wrong format key: {key}")
        if sign == "-" and key not in found:
            raise _refused(f"attempt to delete a nonexistent key: {key}")
        attribute = attributes.get(key)
        if attribute is None:
            raise _refused(f"unsupported key: {key}")
        if known is not None and not attribute.is_changeable:
            raise _refused(f"attempt to update an unchangeable attribute. key: {key}")
        if sign == "+":
            attribute.check(value)
            found[key] = value
        else:
            del found[key]
    return found


def _refused(remark: str) -> BrokerError:
    return refusal(ResponseCode.SYSTEM_ERROR, remark)
