"""A consumer that pops, request by request."""

import base64
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.cluster.broker_peer import Peer, fields, records

from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.message import decode_properties
from pymq.protocol.receipt_handles import topic_kind, topic_of_kind
from pymq.protocol.record import Record

LONG_MS = 600_000


@dataclass(slots=True)
class PoppedMessage:
    """A message and its handle, made as the official client makes it."""

    topic: str
    record: Record
    handle: str
    consumed_count: int = 0

    @property
    def body(self) -> bytes:
        return self.record.body

    @property
    def properties(self) -> dict[str, str]:
        return decode_properties(self.record.properties)


class PopConsumer:
    """One consumer of a group, at one broker."""

    def __init__(
        self,
        peer: Peer | None,
        topic: str = "T",
        group: str = "g",
        broker_name: str = "broker-a",
    ) -> None:
        self._peer = peer
        self.topic = topic
        self.group = group
        self.broker_name = broker_name

    @property
    def peer(self) -> Peer:
        assert self._peer is not None, "this one only makes requests"
        return self._peer

    def pop_fields(self, **changes: Any) -> dict[str, Any]:
        given: dict[str, Any] = {
            "consumerGroup": self.group,
            "topic": self.topic,
            "queueId": -1,
            "maxMsgNums": 32,
            "invisibleTime": LONG_MS,
            "pollTime": 0,
            "bornTime": int(time.time() * 1000),
            "initMode": 0,
            "expType": "TAG",
            "exp": "*",
            "order": False,
        }
        return given | changes

    async def ask(self, **changes: Any) -> Command:
        return await self.peer.ask(RequestCode.POP_MESSAGE, **self.pop_fields(**changes))

    async def pop(self, **changes: Any) -> list[PoppedMessage]:
        answer = await self.ask(**changes)
        if answer.code == ResponseCode.POLLING_TIMEOUT:
            return []
        assert answer.code == ResponseCode.SUCCESS, answer
        return self.messages(answer)

    def messages(self, answer: Command) -> list[PoppedMessage]:
        said = fields(answer)
        starts = {
            part.rsplit(" ", 1)[0]: part.rsplit(" ", 1)[1]
            for part in said["startOffsetInfo"].split(";")
        }
        offsets = {
            tuple(part.split(" ")[:2]): list(map(int, part.split(" ")[2].split(",")))
            for part in said["msgOffsetInfo"].split(";")
        }
        found = []
        for record in records(answer):
            handle = decode_properties(record.properties).get("POP_CK")
            if handle is None:
                kind = topic_kind(record.topic)
                assert record.queue_offset in offsets[kind, str(record.queue_id)]
                handle = (
                    f"{starts[f'{kind} {record.queue_id}']} {said['popTime']} "
                    f"{said['invisibleTime']} {said['reviveQid']} {kind} "
                    f"{self.broker_name} {record.queue_id} {record.queue_offset}"
                )
            found.append(PoppedMessage(self.topic, record, handle))
        counts = dict(
            part.rsplit(" ", 1) for part in said.get("orderCountInfo", "").split(";") if part
        )
        for message in found:
            place = f"{message.record.queue_id}%{message.record.queue_offset}"
            least = counts.get(f"0 {message.record.queue_id}", 0)
            message.consumed_count = int(counts.get(f"0 qo{place}", least))
        return found

    def place_of(self, message: PoppedMessage) -> dict[str, Any]:
        kind, _, queue_id, offset = message.handle.split(" ")[4:]
        return {
            "consumerGroup": self.group,
            "topic": topic_of_kind(self.topic, self.group, kind),
            "queueId": queue_id,
            "offset": offset,
            "extraInfo": message.handle,
        }

    async def ack(self, message: PoppedMessage, **changes: Any) -> Command:
        given = self.place_of(message) | changes
        return await self.peer.ask(RequestCode.ACK_MESSAGE, **given)

    async def change(self, message: PoppedMessage, invisible_ms: int) -> Command:
        """Change when a message becomes visible, and take over its new handle."""
        answer = await self.peer.ask(
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
            **self.place_of(message),
            invisibleTime=invisible_ms,
        )
        self.take_change(message, answer)
        return answer

    def take_change(self, message: PoppedMessage, answer: Command) -> None:
        """Take over the new handle of a message, if it has one."""
        if answer.code == ResponseCode.SUCCESS:
            said = fields(answer)
            _, _, _, _, kind, broker, queue_id, offset = message.handle.split(" ")
            message.handle = (
                f"{offset} {said['popTime']} {said['invisibleTime']} {said['reviveQid']} {kind} "
                f"{broker} {queue_id} {offset}"
            )

    async def ack_batch(self, messages: Sequence[PoppedMessage]) -> Command:
        """Acknowledge several messages, as the official client does."""
        return await self.peer.ask(RequestCode.BATCH_ACK_MESSAGE, self.batch(messages))

    def batch(self, messages: Sequence[PoppedMessage]) -> bytes:
        """Return the body of a batch of acknowledgements."""
        items: dict[tuple[str, ...], dict[str, Any]] = {}
        for message in messages:
            start, pop_time, invisible, revive, kind, _, queue_id, offset = message.handle.split()
            item = items.setdefault(
                (start, pop_time, kind, queue_id),
                {
                    "c": self.group,
                    "t": self.topic,
                    "r": kind,
                    "so": int(start),
                    "q": int(queue_id),
                    "rq": int(revive),
                    "pt": int(pop_time),
                    "it": int(invisible),
                    "b": 0,
                },
            )
            item["b"] |= 1 << int(offset) - int(start)
        for item in items.values():
            bits = item["b"].to_bytes(item["b"].bit_length() // 8 + 1, "little")
            item["b"] = base64.b64encode(bits).decode()
        acks = list(items.values())
        return json.dumps({"brokerName": self.broker_name, "acks": acks}).encode()

    async def notify(self, **changes: Any) -> Command:
        given = self.pop_fields(**changes)
        names = ("consumerGroup", "topic", "queueId", "pollTime", "bornTime", "order")
        names = *names, *(("attemptId",) if "attemptId" in given else ())
        return await self.peer.ask(
            RequestCode.NOTIFICATION, **{name: given[name] for name in names}
        )

    async def polling_count(self, queue_id: int = -1) -> int:
        answer = await self.peer.ask(
            RequestCode.POLLING_INFO,
            consumerGroup=self.group,
            topic=self.topic,
            queueId=queue_id,
        )
        assert answer.code == ResponseCode.SUCCESS
        return int(fields(answer)["pollingNum"])
