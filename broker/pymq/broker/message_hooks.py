"""Transforms special messages before they are stored, as their properties demand.

A property may say that a message is not an ordinary one: that it is to be delivered later, or that
it is one half of a transaction. Each such property has a hook, which returns the record to store
instead. Without a hook the message is refused: stored as an ordinary message it would be delivered
too early, or although it was never committed.

A property may also name something that has to be checked before any of this; see ``add_check``.

A batch cannot contain such messages. RocketMQ refuses a batch that as a whole asks for a delay or a
transaction, but stores such messages inside of it as ordinary ones; its clients never send that.
Here it is refused, too. Exactly-once sinks stage delayed messages in runs of their own.

Source: RocketMQ PutMessageHook, HookUtils, SendMessageProcessor.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pymq.errors import refusal
from pymq.protocol.codes import TRANSACTION_MASK, MessageFlag, ResponseCode
from pymq.protocol.message import (
    DELAY,
    INNER_COUNT,
    TIMER_DELAY_MS,
    TIMER_DELAY_S,
    TIMER_DELIVERY_MS,
    TRANSACTION_PREPARED,
)
from pymq.protocol.new_records import NewRecords
from pymq.protocol.plain_records import PlainRecords
from pymq.protocol.record import NewRecord
from pymq.protocol.staged_records import StagedRecords

#: Gets a record and its properties; returns the record to store, or raises a refusal.
Hook = Callable[[NewRecord, Mapping[str, str]], NewRecord]

#: Gets messages that all have a property, and no other special one; returns what to store instead,
#: or None: each of them has to be looked at by itself.
HookForMany = Callable[[PlainRecords], PlainRecords | None]

#: Gets records that are to be staged and the properties of each, all of which have the property;
#: returns them as they will wait, or raises a refusal.
HookForStaged = Callable[[StagedRecords, Sequence[Mapping[str, str]]], StagedRecords]

#: Gets the topic of a message and the value of its property; raises a refusal.
Check = Callable[[str, str], None]

#: Bits of the system flag that an ordinary message does not have.
_SPECIAL_FLAGS = TRANSACTION_MASK | int(MessageFlag.INNER_BATCH)


def _is_above_zero(value: str) -> bool:
    try:
        return int(value) > 0
    except ValueError:
        return True  # RocketMQ cannot read it either, and fails


def _always(value: str) -> bool:
    return True


def _is_true(value: str) -> bool:
    return value.lower() == "true"


@dataclass(frozen=True, slots=True)
class _Request:
    """The feature that a property asks for, and whether a value really asks for it."""

    feature: str
    is_meant: Callable[[str], bool]


#: By precedence: of several that are meant the first one counts, as in RocketMQ. The delay of a
#: transactional message begins when that is committed. All names but INNER_COUNT begin with D or
#: T: see ``BatchProperties.rows_with``.
_REQUESTS = {
    INNER_COUNT: _Request("inner batches", _always),
    TRANSACTION_PREPARED: _Request("transactional messages", _is_true),
    DELAY: _Request("delayed messages", _is_above_zero),
    TIMER_DELAY_S: _Request("timer messages", _always),
    TIMER_DELAY_MS: _Request("timer messages", _always),
    TIMER_DELIVERY_MS: _Request("timer messages", _always),
}
_NAMES = frozenset(_REQUESTS)
_PREPARED = [TRANSACTION_PREPARED]
_ENCODED_NAMES = {name: f"\x02{name}\x01".encode() for name in _REQUESTS}
_NAMES_IN_BATCHES = frozenset(name.encode() for name in _NAMES - {INNER_COUNT})


class MessageHooks:
    """The hooks of a broker; a message whose property has none is refused."""

    def __init__(self) -> None:
        self._hooks: dict[str, Hook] = {}
        self._hooks_for_many: dict[str, HookForMany] = {}
        self._hooks_for_staged: dict[str, HookForStaged] = {}
        self._checks: dict[str, Check] = {}
        self._checked_marks: tuple[bytes, ...] = ()
        self._names = _NAMES

    def add(
        self,
        name: str,
        hook: Hook,
        for_many: HookForMany | None = None,
        for_staged: HookForStaged | None = None,
    ) -> None:
        """Have messages with a property transformed by a hook."""
        assert name in _NAMES, f"property {name} is not looked at"
        assert name not in self._hooks, f"property {name} has a hook"
        self._hooks[name] = hook
        if for_many is not None:
            self._hooks_for_many[name] = for_many
        if for_staged is not None:
            self._hooks_for_staged[name] = for_staged

    def add_check(self, name: str, check: Check) -> None:
        """Have the value of a property checked, of messages sent one by one; batches have none."""
        self._checks[name] = check
        self._checked_marks += (f"\x02{name}\x01".encode(),)
        self._names |= {name}

    def apply_to_many(self, records: PlainRecords, properties: bytes) -> PlainRecords | None:
        """Return what to store instead of messages; None: each has to be looked at by itself.

        Args:
            records: messages that a producer sent.
            properties: of all of them, encoded, each name with U+0002 in front.
        """
        for mark in self._checked_marks:
            if mark in properties:
                return None
        names = asked_for(properties)
        if records.sys_flag & _SPECIAL_FLAGS and names != _PREPARED:
            return None
        if not names:
            return records
        hook = self._hooks_for_many.get(names[0]) if len(names) == 1 else None
        return None if hook is None else hook(records)

    def apply(self, record: NewRecord, properties: Mapping[str, str]) -> NewRecord:
        """Return the record to store instead of a record.

        Args:
            record: a message that is not part of a batch.
            properties: its properties.

        Raises:
            BrokerError: it asks for something that this broker does not support.
        """
        if self._names.isdisjoint(properties) and not record.sys_flag & _SPECIAL_FLAGS:
            return record
        for checked, check in self._checks.items():
            if checked in properties:
                check(record.topic, properties[checked])
        name = next(iter(_meant(properties)), None)
        hook = None
        if name is not None and (hook := self._hooks.get(name)) is None:
            raise refusal(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f"{_REQUESTS[name].feature} (property {name}) are not supported by this "
                "broker; send the message without it",
            )
        if record.sys_flag & _SPECIAL_FLAGS and name != TRANSACTION_PREPARED:
            # Stored like this it would be acknowledged, but never delivered.
            raise refusal(ResponseCode.MESSAGE_ILLEGAL, _flags_remark(record.sys_flag))
        return record if hook is None else hook(record, properties)

    def check_batch(self, batch: NewRecords, properties: Mapping[str, str]) -> None:
        """Refuse a batch with special messages.

        Args:
            batch: the messages.
            properties: those of the batch as a whole.

        Raises:
            BrokerError: it contains such a message, or is to be treated as one.
        """
        self._check_whole(batch, properties)
        for number, inner in batch.records_with(_NAMES_IN_BATCHES):
            for name in _meant(inner):
                raise refusal(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"a batch cannot contain {_REQUESTS[name].feature} (property {name} of message "
                    f"{number}, counted from 0); send them one by one",
                )

    def apply_to_staged(
        self, records: StagedRecords, properties: Mapping[str, str]
    ) -> StagedRecords:
        """Return what to stage instead of records: delayed ones as they will wait.

        Args:
            records: for one queue.
            properties: those of the request as a whole.

        Raises:
            BrokerError: they contain something else that is special, or what differs in its delay.
        """
        self._check_whole(records, properties)
        found = records.records_with(_NAMES_IN_BATCHES)
        meant = [next(iter(_meant(inner)), None) for _, inner in found]
        name = next((one for one in meant if one is not None), None)
        if name is None:
            return records
        hook = self._hooks_for_staged.get(name)
        if hook is None:
            raise refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"{_REQUESTS[name].feature} (property {name}) cannot be staged at this broker; "
                "write them without it",
            )
        if len(meant) != records.count or set(meant) != {name}:
            raise refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"{meant.count(name)} of {records.count} staged records for topic {records.topic} "
                f"have property {name}, and others do not; stage them by themselves",
            )
        return hook(records, [inner for _, inner in found])

    def _check_whole(self, batch: NewRecords, properties: Mapping[str, str]) -> None:
        for name in _meant(properties):
            raise refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a batch cannot consist of {_REQUESTS[name].feature} (property {name} of the "
                "batch); send them one by one",
            )
        if batch.sys_flag & _SPECIAL_FLAGS:
            raise refusal(ResponseCode.MESSAGE_ILLEGAL, _flags_remark(batch.sys_flag))
        for name in self._checks:
            if name in properties or batch.has_property(name.encode()):
                raise refusal(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"messages with property {name} cannot be sent in a batch; send them one by "
                    "one",
                )


def asked_for(properties: bytes) -> list[str]:
    """Return the names of properties that a hook may want to see; usually there are none.

    Args:
        properties: encoded, each name with U+0002 in front.
    """
    return [name for name, encoded in _ENCODED_NAMES.items() if encoded in properties]


def _meant(properties: Mapping[str, str]) -> list[str]:
    """Return the properties that ask for something, by precedence."""
    return [
        name
        for name, request in _REQUESTS.items()
        if name in properties and request.is_meant(properties[name])
    ]


def _flags_remark(sys_flag: int) -> str:
    return (
        f"system flag {sys_flag:#x} says transaction or inner batch, but the message's "
        "properties do not; send it with a matching flag"
    )
