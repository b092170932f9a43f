"""The official transactional producer, and what a broker keeps of its transactions."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from tests.interop.java_client import SEND_TIMEOUT_MS, Started
from tests.interop.java_values import (
    MessageReader,
    Outgoing,
    ReceivedMessage,
    Sent,
    call,
    java_message,
    sent,
)
from tests.interop.jvm import JavaClient

from pymq.net.blocking import BlockingChannel
from pymq.protocol.codes import PullFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.record import Record, decode_records

TIMEOUT_S: Final = 30.0
#: The property that holds what a message's listener says: first after sending, then at each check;
#: the last answer is repeated. ``throw`` throws.
ANSWERS: Final = "answers"
STATES: Final = {"commit": "COMMIT_MESSAGE", "rollback": "ROLLBACK_MESSAGE", "unknown": "UNKNOW"}


class JavaTransactionProducer(Started):
    """``TransactionMQProducer`` whose listener, in Python, says what each message's property says.

    Args:
        always: what it says to every check instead.

    Attributes:
        checked: the messages that the broker has asked about, in order.
    """

    def __init__(
        self, client: JavaClient, group: str, name_server: str, *, always: str | None = None
    ) -> None:
        self._always = always
        java = client.jvm.org.apache.rocketmq.client.producer.TransactionMQProducer(group)
        super().__init__(client, java, name_server)
        java.setSendMsgTimeout(SEND_TIMEOUT_MS)
        java.setTransactionListener(_Listener(client, self))
        self._changed = threading.Condition()
        self._reader = MessageReader(client)
        self.checked: list[ReceivedMessage] = []
        self.start()

    def send(
        self,
        topic: str,
        body: bytes,
        answers: str,
        *,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
    ) -> Sent:
        """Send in a transaction.

        Args:
            answers: separated by commas: ``commit``, ``rollback``, ``unknown``, ``throw``.

        Raises:
            JavaError: the client threw.
        """
        more = {**(properties or {}), ANSWERS: answers}
        message = java_message(self.client, Outgoing(topic, body, tags, properties=more))
        message.setFlag(flag)
        return sent(call(self.java.sendMessageInTransaction, message, None))

    def wait_checked(self, count: int, timeout_s: float = 120.0) -> list[ReceivedMessage]:
        """Return at least this many checks."""
        with self._changed:
            found = self._changed.wait_for(lambda: len(self.checked) >= count, timeout_s)
            assert found, f"{len(self.checked)} of {count} checks in {timeout_s} s"
            return list(self.checked)

    def take_check(self, message: Any) -> str:
        """Keep a message that the broker asks about; return the answer."""
        (received,) = self._reader.read([message])
        with self._changed:
            key = received.properties["UNIQ_KEY"]
            earlier = sum(one.properties["UNIQ_KEY"] == key for one in self.checked)
            self.checked.append(received)
            self._changed.notify_all()
        if self._always is not None:
            return self._always
        answers = received.properties[ANSWERS].split(",")
        return answers[min(earlier + 1, len(answers) - 1)]


class _Listener:
    """``TransactionListener``."""

    def __init__(self, client: JavaClient, owner: JavaTransactionProducer) -> None:
        states = client.jvm.org.apache.rocketmq.client.producer.LocalTransactionState
        self._states = {name: getattr(states, java) for name, java in STATES.items()}
        self._owner = owner

    def executeLocalTransaction(self, message: Any, argument: Any) -> Any:
        return self._state(message.getProperty(ANSWERS).split(",")[0])

    def checkLocalTransaction(self, message: Any) -> Any:
        return self._state(self._owner.take_check(message))

    def _state(self, answer: str) -> Any:
        if answer == "throw":
            raise RuntimeError("the local transaction failed")
        return self._states[answer]

    class Java:
        implements: Final = ["org.apache.rocketmq.client.producer.TransactionListener"]


@contextlib.contextmanager
def asking(address: str) -> Iterator[Callable[..., Command]]:
    """Give a function that sends one request to a broker."""
    host, port = address.rsplit(":", 1)
    channel = BlockingChannel.connect(host, int(port), timeout_s=TIMEOUT_S)

    def ask(code: int, **fields: object) -> Command:
        texts = {name: str(value) for name, value in fields.items()}
        return channel.request(Command(code, texts), TIMEOUT_S)

    try:
        yield ask
    finally:
        channel.close()


def stored_records(address: str, topic: str, queue_ids: Sequence[int] = (0,)) -> list[Record]:
    """Return everything that a broker shows of some queues."""
    found: list[Record] = []
    with asking(address) as ask:
        for queue_id in queue_ids:
            offset = 0
            while True:
                answer = ask(
                    RequestCode.PULL_MESSAGE,
                    consumerGroup="looking",
                    topic=topic,
                    queueId=queue_id,
                    queueOffset=offset,
                    maxMsgNums=32,
                    sysFlag=int(PullFlag.SUBSCRIPTION),
                    commitOffset=0,
                    suspendTimeoutMillis=0,
                    subscription="*",
                    subVersion=0,
                    expressionType="TAG",
                )
                if answer.code != ResponseCode.SUCCESS:
                    break
                found += decode_records(answer.body, verify=True)
                offset = int((answer.fields or {})["nextBeginOffset"])
    return found


def stored_count(address: str, topic: str) -> int:
    """Return where queue 0 ends; brokers say it also of topics that they let nobody read."""
    with asking(address) as ask:
        answer = ask(RequestCode.GET_MAX_OFFSET, topic=topic, queueId=0)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return int((answer.fields or {})["offset"])


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 120.0) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        time.sleep(0.1)
