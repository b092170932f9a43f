"""Who fills golden stores: the Java writer and our client, and what the store must say of it."""

from __future__ import annotations

import dataclasses
import random
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Final

from tests.administration import admin_of
from tests.interop.golden import (
    LEVELS_DUE,
    Program,
    Served,
    Written,
    check_dense,
    check_keys,
    check_ledger,
    key_questions,
    lines_of,
    parse_ledger,
    parse_messages,
    queue_questions,
    time_questions,
    view_questions,
)
from tests.interop.golden_places import PARTS, QUEUE_COUNT, TOPIC_COUNT, Place, wait
from tests.interop.test_store_exchange import BROKER_NAME, BrokerLike

from pymq.client.operations.sends import SendResult
from pymq.errors import RemoteProtocolError
from pymq.protocol import fastjson
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import Message, decode_properties

BOUNDARY_VERSION: Final = "5.3.3"
DELAYED_COUNT: Final = 600
#: Left to whoever serves our store next: 10 s are enough to stop our broker, few enough to wait.
WAITING_COUNT: Final = 24
WAITING_LEVEL: Final = 3
HALF_COUNT: Final = 600
MESSAGE_COUNT: Final = 100_000 // PARTS - DELAYED_COUNT - HALF_COUNT
#: Sent by each of two clients after the other side has opened the store.
MORE_COUNT: Final = 2_000
OUR_COUNT: Final = 40
#: Acknowledged one by one before the kill.
LAST_COUNT: Final = 100
#: Between the halves of a writer's messages, so that a range of times can end there: more than
#: an index's resolution of one second.
PAUSE_MS: Final = 3_000
SAMPLE_COUNT: Final = 200


def fill(
    place: Place,
    broker: BrokerLike,
    version: str,
    topics: list[str],
    store: Path,
    *,
    seed: int,
) -> list[Written]:
    """Make the topics, have the Java writer fill them, and kill the broker; return the ledger."""
    admin = admin_of(place.client)
    for topic in topics:
        admin.topics.create(topic, queue_count=QUEUE_COUNT)
    home = place.directory("writer")
    path = home / "ledger.txt"
    arguments = [
        place.name_server, BROKER_NAME, ",".join(topics), QUEUE_COUNT, seed, MESSAGE_COUNT,
        DELAYED_COUNT, HALF_COUNT, PAUSE_MS, path, "first",
    ]  # fmt: skip
    with Program("StoreWriter", version, home, arguments) as writer:
        writer.wait_text("written")
        ledger = parse_ledger(path)
        place.wait_message_count(topics, visible_count(ledger))
        wait_delivered(store, ledger)
        writer.tell("go on until the end")
        wait(lambda: len(lines_of(path)) >= len(ledger) + LAST_COUNT or "no last messages")
        broker.kill()
        writer.wait_end()
    return parse_ledger(path)


def wait_delivered(store: Path, ledger: list[Written]) -> None:
    """Wait until the broker has recorded on the disk that all due messages are delivered.

    One that is killed before delivers them once more.
    """
    path = store / "config" / "delayOffset.json"
    wanted = Counter(one.delay_level for one in ledger if one.delay_level in LEVELS_DUE)

    def is_noted() -> bool | str:
        try:
            table = fastjson.parse(path.read_text())["offsetTable"]
        except (OSError, RemoteProtocolError, KeyError) as error:  # it is just being written
            return str(error)
        found = {level: table.get(str(level)) for level in wanted}
        return found == wanted or f"{found}, expected {wanted}"

    wait(is_noted)


def times(ledger: list[Written]) -> list[int]:
    """Return times before, in and after a writer's work."""
    answered = sorted(written.answered_ms for written in ledger)
    return [0, *answered[:: len(answered) // 10], answered[-1] + 3_600_000]


def visible_count(ledger: list[Written]) -> int:
    """Return how many messages of a ledger are in their topics, or will be soon."""
    return sum(one.is_visible for one in ledger)


def send_waiting(place: Place, topics: list[str], seed: int) -> list[Written]:
    """Send messages that are not due before our broker is gone; return what was written."""
    chance = random.Random(seed)
    written = []
    for number in range(WAITING_COUNT):
        message = Message(
            topics[number % TOPIC_COUNT],
            chance.randbytes(100),
            tags="a",
            keys=[f"waiting-{number}", "waiting"],
            delay_level=WAITING_LEVEL,
        )
        queue = MessageQueue(message.topic, BROKER_NAME, number // TOPIC_COUNT % QUEUE_COUNT)
        result = place.client.send(message, queue)
        written.append(
            dataclasses.replace(
                our_written(message, result, 0), kind="delayed", delay_level=WAITING_LEVEL
            )
        )
    return written


def when_asked(written: Written) -> Written:
    """Return what becomes of a pending half message once its producer is asked."""
    if written.fate != "pending":
        return written
    return dataclasses.replace(written, fate=written.properties["fate"])


def append(
    place: Place, version: str, topics: list[str], seed: int, *, count_before: int
) -> list[Written]:
    """Send more through both clients to the running broker; return what was written.

    Args:
        count_before: messages that the topics hold before, or will hold without ours.
    """
    home = place.directory("writer")
    path = home / "ledger.txt"
    arguments = [
        place.name_server, BROKER_NAME, ",".join(topics), QUEUE_COUNT, seed, MORE_COUNT, 0, 0, 0,
        path, home.name,
    ]  # fmt: skip
    with Program("StoreWriter", version, home, arguments) as writer:
        writer.wait_text("written")
        written = [*parse_ledger(path), *send_ours(place, topics, seed, home.name)]
        # Before the writer goes, which answers for half messages.
        place.wait_message_count(topics, count_before + len(written))
        writer.wait_end()
    return written


def send_ours(place: Place, topics: list[str], seed: int, name: str) -> list[Written]:
    """Send with our client, one by one and in batches; return what was written."""
    chance = random.Random(seed)
    written = []
    for topic in topics:
        for queue_id in range(QUEUE_COUNT):
            queue = MessageQueue(topic, BROKER_NAME, queue_id)
            messages = [
                Message(
                    topic,
                    chance.randbytes(1 + chance.randrange(5_000)),
                    tags=[None, "a", "Grüße"][number % 3],
                    keys=[f"{name}-ours-{queue_id}-{number}", f"{name}-ours"],
                    properties={"text": '世界 😀 = \\ "'} if number % 2 else {},
                )
                for number in range(OUR_COUNT)
            ]
            single, batch = messages[::2], messages[1::2]
            for message in single:
                result = place.client.send(message, queue)
                written.append(our_written(message, result, 0))
            result = place.client.send_batch(queue, batch)
            written += [our_written(one, result, number) for number, one in enumerate(batch)]
    return written


def our_written(message: Message, result: SendResult, number: int) -> Written:
    """Return the ledger's line of a message of ours, the ``number``-th of its request."""
    assert result.message_id is not None
    properties = message.encode_properties(result.message_id.split(",")[number])
    return Written(
        "single",
        message.topic,
        result.queue.queue_id,
        result.queue_offset + number,
        result.message_id.split(",")[number],
        result.offset_message_ids[number],
        int(time.time() * 1000),
        0,
        "-",
        zlib.crc32(message.body),
        len(message.body),
        decode_properties(properties),
    )


def continued_questions(
    version: str, topics: list[str], ledger: list[Written], seed: int
) -> list[str]:
    """Ask for everything in a store that others added to."""
    chance = random.Random(seed)
    questions = [
        *queue_questions(version, topics, QUEUE_COUNT),
        *view_questions(one for one in ledger if one.kind == "delayed"),
        *view_questions(chance.sample(ledger, SAMPLE_COUNT)),
        *key_questions(ledger, chance, SAMPLE_COUNT),
    ]
    if version == BOUNDARY_VERSION:
        questions += time_questions(topics, QUEUE_COUNT, times(ledger))
    return questions


def check_report(report: list[str], ledger: list[Written], topics: list[str]) -> list[Served]:
    """A report agrees with the ledger and with itself; return its messages."""
    messages = parse_messages(report)
    check_ledger(ledger, messages, set(topics))
    check_dense(report, messages)
    check_keys(report, messages)
    return messages


def check_continued(report: list[str], before: list[Served]) -> None:
    """What was there before is there as it was."""
    at = {message.physical_offset: message for message in parse_messages(report)}
    changed = [one for one in before if at.get(one.physical_offset) != one]
    assert not changed, f"{len(changed)} messages differ, such as {changed[0]}"
