"""One of two brokers is killed and comes back while delayed and timer messages fall due."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

from tests.spark.two_brokers import NAMES, TwoBrokers, wait_until

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.net.blocking import BlockingChannel
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.send import SendRequest
from pymq.protocol.record import Record, decode_records

TIMEOUT_S = 30.0
LEVELS_MS = (1000, 2000, 3000)
COUNT = 60
#: 1 s on an idle machine, and for timers a slot of another one. A busy one takes much longer.
LATE_MS_MAX = 60_000
SETTINGS: dict[str, str | int] = {
    "messageDelayLevel": "1s 2s 3s",
    "flushDelayOffsetInterval": 200,
    "timerFlushIntervalMs": 200,
}


class Sender:
    """Sends to one broker, and knows when what it was told of is due (ms), by body."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._channel = BlockingChannel.connect(host, int(port), timeout_s=TIMEOUT_S)
        self.due_ms: dict[bytes, int] = {}

    def send(self, body: bytes, properties: str, delay_ms: int) -> None:
        request = SendRequest(
            "pg", "T", "TBW102", 1, 0, 0, 1700000000000, 0, properties, 0, False, None, False
        )
        before_ms = time.time_ns() // 1_000_000
        command = Command(RequestCode.SEND_MESSAGE_V2, request.to_v2(), body)
        answer = self._channel.request(command, TIMEOUT_S)
        assert answer.code == ResponseCode.SUCCESS, answer
        self.due_ms[body] = before_ms + delay_ms

    def send_many(self, name: str, chance: random.Random) -> None:
        """Send messages of both kinds."""
        for number in range(COUNT):
            body = f"{name} {number}".encode()
            if number % 2:
                level = chance.randrange(3)
                self.send(body, f"DELAY\x01{level + 1}\x02", LEVELS_MS[level])
            else:
                delay_ms = chance.randrange(500, 4000)
                self.send(body, f"TIMER_DELAY_MS\x01{delay_ms}\x02", delay_ms)

    def close(self) -> None:
        self._channel.close()


def delivered(bed: TwoBrokers, name: str) -> list[Record]:
    """Return what is in the topic on one broker."""
    with BlockingClient(bed.name_server, timeout_s=TIMEOUT_S) as client:
        queues = [queue for queue in client.read_queues("T") if queue.broker_name == name]
        return [
            record
            for queue, (first, end) in client.bounds(queues).items()
            for chunk in client.pull_range(queue, first, end)
            for record in decode_records(chunk.buffer, verify=True)
        ]


def wait_delivered(bed: TwoBrokers, name: str, bodies: set[bytes]) -> list[Record]:
    """Return what is in the topic on one broker, when all of this is."""
    found: list[Record] = []

    def is_there() -> bool:
        found[:] = delivered(bed, name)
        return bodies <= {bytes(record.body) for record in found}

    wait_until(is_there, f"all of {name} is delivered")
    return found


def test_a_broker_that_is_killed_while_messages_fall_due(tmp_path: Path, seed: int) -> None:
    """Nothing is lost or early; the other one repeats nothing and goes on as if nothing were."""
    chance = random.Random(seed)
    with TwoBrokers(tmp_path, **SETTINGS) as bed:
        bed.create_topic("T", queue_count=1)
        senders = {name: Sender(bed.broker(name).address) for name in NAMES}
        for name, sender in senders.items():
            sender.send_many(name, chance)
        wait_until(lambda: bool(delivered(bed, "broker-b")), "it delivers")
        before = {bytes(record.body) for record in delivered(bed, "broker-b")}
        bed.kill("broker-b")
        senders["broker-a"].send_many("more", chance)
        time.sleep(1.0)  # so that some are overdue when it comes back
        bed.start("broker-b")
        for name, sender in senders.items():
            sender.close()
            expected = sender.due_ms
            found = wait_delivered(bed, name, set(expected))
            counts = Counter(bytes(record.body) for record in found)
            twice = {body for body, count in counts.items() if count > 1}
            # Those of the moment between what was read and the kill may be twice as well.
            assert name == "broker-b" or not twice, twice
            assert max(counts.values()) <= 2 and counts.keys() == expected.keys()
            early = [one for one in found if one.store_timestamp < expected[bytes(one.body)]]
            assert not early, early
            if name == "broker-a":
                late_ms = max(one.store_timestamp - expected[bytes(one.body)] for one in found)
                assert late_ms < LATE_MS_MAX
        assert before
