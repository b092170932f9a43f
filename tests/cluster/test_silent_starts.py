"""Where a group begins in queues of a broker that is silent while its consumer starts."""

import time
from collections import Counter

import pytest
from tests.cluster.fake_broker import FakeBroker
from tests.cluster.running import run
from tests.cluster.scenarios import wait_until

from pymq import Consumer, PullConsumer
from pymq.client.group.start_policy import CLOCK_SKEW_MS
from pymq.net.server import ServerConnection
from pymq.protocol.bodies import Heartbeat, LockRequest, LockResponse, MessageQueue
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command

#: No group has an offset at the broker.
BEGINNINGS = (RequestCode.GET_MAX_OFFSET, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
DEADLINE_S = 60.0
#: How long is waited for answers that do not come.
SOON_S = 1.0


class SilentBroker(FakeBroker):
    """Is silent at first about one thing; ``beginnings`` are what it is asked about ``T``."""

    def __init__(self, silent_about: RequestCode | None) -> None:
        super().__init__()
        self.silent_about = silent_about
        #: How often it was silent, by queue.
        self.asked_in_vain: Counter[str] = Counter()
        #: When it was last.
        self.silent_ms = 0
        self.beginnings: list[tuple[int, int]] = []
        #: Where the queues of ``T`` begin.
        self.committed: dict[str, str] = {}
        self.members: set[str] = set()

    def on_command(self, connection: ServerConnection, command: Command) -> None:
        fields = command.fields or {}
        queue = f"{fields.get('topic')} {fields.get('queueId')}"
        is_retried = fields.get("topic", "").startswith("%RETRY%")
        if command.code == self.silent_about and not is_retried:
            self.silent_ms = time.time_ns() // 1_000_000
            self.asked_in_vain[queue] += 1
            return
        answer = command.reply(0)
        if command.code == RequestCode.HEART_BEAT:
            self.members.add(Heartbeat.decode(command.body).client_id)
        elif command.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            ids = ",".join(f'"{one}"' for one in sorted(self.members))
            answer = command.reply(0, body=b'{"consumerIdList":[%s]}' % ids.encode())
        elif command.code == RequestCode.LOCK_BATCH_MQ:
            wanted = LockRequest.decode(command.body).queues
            answer = command.reply(0, body=LockResponse(queues=wanted).encode())
        elif command.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            if not is_retried:
                self.committed[queue] = fields["commitOffset"]
        elif command.code == RequestCode.QUERY_CONSUMER_OFFSET:
            answer = command.reply(22, "none")
            if queue in self.committed:
                answer = command.reply(0, fields={"offset": self.committed[queue]})
        elif command.code in (*BEGINNINGS, RequestCode.GET_MIN_OFFSET):
            if not is_retried:
                self.beginnings.append((command.code, int(fields.get("timestamp", 0))))
            answer = command.reply(0, fields={"offset": "77"})
        elif command.code == RequestCode.PULL_MESSAGE:
            return  # and holds it
        else:
            super().on_command(connection, command)
            return
        connection.respond(command, answer)


async def broken_off(broker: SilentBroker) -> None:
    """Wait until its silence was given up."""
    of_queues = (RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.GET_MAX_OFFSET)
    by_queue = broker.silent_about in of_queues
    asked = broker.asked_in_vain
    await wait_until(
        lambda: len(asked) == 1 + by_queue
        and (min(asked.values()) > 1 or len(broker.beginnings) == 2),
        "it is asked once more",
    )
    broker.silent_about = None


def timed_queues(broker: SilentBroker, begun_ms: int) -> None:
    """Both queues begin where the group began, not at the end that they have by now."""
    assert [code for code, _ in broker.beginnings] == [RequestCode.SEARCH_OFFSET_BY_TIMESTAMP] * 2
    for _, since_ms in broker.beginnings:
        assert begun_ms <= since_ms + CLOCK_SKEW_MS <= broker.silent_ms


ASKED = (
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.GET_MAX_OFFSET,
)


@pytest.mark.parametrize(
    "silent_about, orderly",
    [
        *((code, orderly) for code in ASKED for orderly in (False, True)),
        (RequestCode.LOCK_BATCH_MQ, True),
    ],
)
def test_what_a_silent_broker_gets_meanwhile_is_read(
    silent_about: RequestCode, orderly: bool
) -> None:
    async def test() -> None:
        begun_ms = time.time_ns() // 1_000_000
        async with SilentBroker(silent_about) as broker:
            made = Consumer(broker.address, "g", orderly=orderly, timeout_s=SOON_S)
            async with made.subscribe("T"):
                await broken_off(broker)
                await wait_until(lambda: len(broker.committed) >= 2, "both queues have begun")
            timed_queues(broker, begun_ms)

    run(test())


def test_what_a_silent_broker_gets_in_assigned_queues_is_read() -> None:
    async def test() -> None:
        begun_ms = time.time_ns() // 1_000_000
        async with SilentBroker(RequestCode.QUERY_CONSUMER_OFFSET) as broker:
            made = PullConsumer(broker.address, "g", timeout_s=SOON_S)
            async with made.assign([MessageQueue("T", "broker-a", n) for n in range(2)]):
                await broken_off(broker)
                await wait_until(lambda: len(broker.committed) >= 2, "both queues have begun")
            timed_queues(broker, begun_ms)

    run(test())


@pytest.mark.parametrize("orderly", [False, True])
def test_who_is_answered_begins_at_the_end(orderly: bool) -> None:
    async def test() -> None:
        async with SilentBroker(None) as broker:
            made = Consumer(broker.address, "g", orderly=orderly, timeout_s=DEADLINE_S)
            async with made.subscribe("T"):
                await wait_until(lambda: len(broker.committed) >= 2, "both queues have begun")
            assert [code for code, _ in broker.beginnings] == [RequestCode.GET_MAX_OFFSET] * 2

    run(test())
