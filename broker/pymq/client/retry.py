"""Giving a message back to its broker, which delivers it again later or makes it a dead letter."""

from pymq.client.operations import Operation
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.headers.retry import SendBackRequest
from pymq.protocol.message import RETRY_TOPIC, ReceivedMessage
from pymq.protocol.names import is_retry_topic


class SendBack(Operation[None]):
    """CONSUMER_SEND_MSG_BACK (36)."""

    __slots__ = ("_group", "_message_id")

    def __init__(
        self,
        message: ReceivedMessage,
        *,
        group: str,
        max_reconsume_times: int,
        delay_level: int = 0,
    ) -> None:
        header = SendBackRequest(
            offset=message.physical_offset,
            group=group,
            delay_level=delay_level,
            origin_message_id=message.message_id,
            origin_topic=message.topic,
            max_reconsume_times=max_reconsume_times,
            broker_name=message.broker_name,
        )
        super().__init__(Command(int(RequestCode.CONSUMER_SEND_MSG_BACK), header.to_fields()))
        self._group = group
        self._message_id = message.message_id

    @property
    def asked(self) -> str:
        return f"to take message {self._message_id} of group {self._group!r} back"

    def result(self, response: Command, *, peer: str) -> None:
        if response.code != 0:
            raise self.refusal(response, peer)


def visible_topic(stored_topic: str, properties: dict[str, str]) -> str:
    """Return the topic a handler sees: a retried message has its first one again."""
    if is_retry_topic(stored_topic):
        return properties.get(RETRY_TOPIC, stored_topic)
    return stored_topic
