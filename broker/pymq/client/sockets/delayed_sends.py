"""Sends of delayed messages, which no broker takes in batches, for the Spark connector."""

from dataclasses import dataclass

from pymq.client.operations import PreparedMessage, Send, SendResult
from pymq.client.sending.preencoded_records import BrokerKind
from pymq.errors import ConfigurationError, LocalProtocolError, MessageIllegal
from pymq.protocol.codes import MQ_VERSION_TIMERS
from pymq.protocol.command import Command


@dataclass(slots=True)
class DelayedMessage(PreparedMessage):
    """A message that is to be delivered later.

    Attributes:
        what: which one, and when it is to be delivered, for errors.
        has_time: whether it is delayed until a time, and not by a level.
    """

    what: str = ""
    has_time: bool = False

    def check_broker(self, kind: BrokerKind, broker: str) -> None:
        """Check that a broker takes the message, and knows this kind of delay.

        Args:
            kind: what the broker said of itself.
            broker: its name and address, for the error.

        Raises:
            ConfigurationError: it does not know it, and would deliver the message at once.
            LocalProtocolError: the body is empty, on which a broker of RocketMQ 5 fails.
        """
        if not kind.takes_records and not len(self.body):
            raise LocalProtocolError(
                f"{self.what}: its body is empty, which broker {broker}, of RocketMQ, does not "
                "take of a delayed message: give it a body, or no delay"
            )
        if self.has_time and kind.version < MQ_VERSION_TIMERS:
            raise ConfigurationError(
                f"{self.what}: broker {broker} has version {kind.version} of RocketMQ's protocol, "
                f"which is before 5.0 ({MQ_VERSION_TIMERS}): it would deliver the message at once. "
                "Use delay levels, or another broker"
            )


class DelayedSend(Send):
    """The send of a delayed message: made of what sends it, and tells more when it is refused."""

    __slots__ = ("_message",)

    def __init__(self, send: Send, message: DelayedMessage) -> None:
        self.request = send.request
        self.queue = send.queue
        self._message_id = message.message_id
        self._message = message

    def result(self, response: Command, *, peer: str) -> SendResult:
        try:
            return super().result(response, peer=peer)
        except MessageIllegal as error:
            raise LocalProtocolError(f"{self._message.what}: {error}") from error
