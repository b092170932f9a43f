"""What ``pymq consume`` reads, and in which order: over a BlockingClient, without joining a group.

Pulls are sent under RocketMQ's group for tools, and nothing is committed, so that no other group's
offsets change. Messages of all queues are merged by their store time.
"""

import heapq
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Literal

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import ConfigurationError, PymqError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import ReceivedMessage
from pymq.protocol.names import TOOLS_GROUP
from pymq.protocol.record import decode_records

_log = logging.getLogger(__name__)

#: Where to begin: a word, an offset in every queue, or the moment of storing.
Start = Literal["earliest", "latest"] | int | datetime
Positions = dict[MessageQueue, int]

#: How often a tail looks for new messages: this, or longer for a topic with very many queues.
POLL_S = 0.2
_POLL_S_PER_QUEUE = 0.005

_AGO = re.compile(r"([0-9]+)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_start(text: str, *, now: datetime, option: str = "--from") -> Start:
    """Return where ``--from`` says to begin.

    Args:
        text: ``earliest``, ``latest``, an offset, a time like ``2026-01-31T12:00``, or a time
            span like ``15m`` (s, m, h, d) back from now.
        now: the current local time.
        option: its name, for the error message.

    Raises:
        ConfigurationError: it is none of these.
    """
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isascii() and text.isdigit():
        return int(text)
    return parse_moment(
        option, text, now=now, also="earliest, latest, an offset such as 42, "
    )


def parse_moment(option: str, text: str, *, now: datetime, also: str = "") -> datetime:
    """Return a time like ``2026-01-31T12:00``, or a time span like ``15m`` back from now.

    Args:
        option: its name, for the error message.
        text: its value.
        now: the current local time.
        also: what else the option accepts, for the error message.

    Raises:
        ConfigurationError: it is neither.
    """
    try:
        if ago := _AGO.fullmatch(text):
            moment = now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        else:
            moment = datetime.fromisoformat(text)
        moment.timestamp()  # one without a zone may be before all times of this one
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigurationError(
            f"{option} {text!r}: expected {also}a time such as 2026-01-31T12:00, or a time span "
            "such as 15m"
        ) from error
    return moment


def start_positions(client: BlockingClient, topic: str, start: Start) -> Positions:
    """Return the first offset to read, for each queue of a topic.

    An offset outside a queue becomes the nearest one inside.

    Raises:
        RouteNotFound: there is no such topic.
        PymqError: a broker could not be reached.
    """
    bounds = client.bounds(client.read_queues(topic))
    if start == "earliest":
        return {queue: first for queue, (first, _) in bounds.items()}
    if start == "latest":
        return {queue: end for queue, (_, end) in bounds.items()}
    if isinstance(start, datetime):
        moment_ms = int(start.timestamp() * 1000)
        return {queue: client.offset_by_time(queue, moment_ms) for queue in bounds}
    assert isinstance(start, int)
    return {queue: _inside(queue, start, *span) for queue, span in bounds.items()}


def committed_positions(client: BlockingClient, topic: str, group: str, start: Start) -> Positions:
    """Return where a group continues in each queue: at its committed offset, else at ``start``."""
    positions = start_positions(client, topic, start)
    for queue in positions:
        committed = client.committed_offset(group, queue)
        if committed is not None:
            positions[queue] = committed
    return positions


def _inside(queue: MessageQueue, offset: int, first: int, end: int) -> int:
    inside = min(max(offset, first), end)
    if inside != offset:
        _log.warning(
            "%s/%d has offsets %d to %d: beginning at %d instead of %d",
            queue.broker_name,
            queue.queue_id,
            first,
            end,
            inside,
            offset,
        )
    return inside


def backlog(
    client: BlockingClient,
    positions: Positions,
    *,
    tags: str = "*",
    group: str = TOOLS_GROUP,
) -> Iterator[ReceivedMessage]:
    """Yield what is there now, in the order of storing, and advance ``positions``.

    A position is after every message yielded before the current one; when the iteration ends by
    itself, it is the end that the queue had at the beginning.

    Raises:
        PymqError: a broker could not be reached.
    """
    bounds = client.bounds(positions)
    matches = tag_filter(tags)
    streams = [
        _range(client, queue, max(positions[queue], first), end, tags, group)
        for queue, (first, end) in bounds.items()
        if max(positions[queue], first) < end
    ]
    for message in heapq.merge(*streams, key=lambda one: one.store_timestamp_ms):
        if matches(message):
            yield message
        queue = MessageQueue(message.topic, message.broker_name, message.queue_id)
        positions[queue] = message.queue_offset + 1
    for queue, (_, end) in bounds.items():
        positions[queue] = max(positions[queue], end)


def _range(
    client: BlockingClient, queue: MessageQueue, first: int, end: int, tags: str, group: str
) -> Iterator[ReceivedMessage]:
    for chunk in client.pull_range(queue, first, end, tags=tags, group=group, bytes_max=1 << 20):
        for record in decode_records(chunk.buffer):
            yield ReceivedMessage.from_record(record, queue.broker_name)


def tail(
    client: BlockingClient,
    positions: Positions,
    *,
    tags: str = "*",
    adopts_queues: bool = True,
) -> Iterator[ReceivedMessage]:
    """Yield what is there and what arrives, for ever; queues added to the topic are read, too.

    Args:
        client: to read with.
        positions: where to begin in each queue of one topic; advanced.
        tags: ``*``, or tags joined by ``||``.
        adopts_queues: read those that are added, too.

    Raises:
        PymqError: a broker could not be reached until the client's deadline.
    """
    pause = threading.Event()
    topics = {queue.topic for queue in positions}
    while True:
        before = dict(positions)
        yield from backlog(client, positions, tags=tags)
        if positions == before:
            pause.wait(max(POLL_S, _POLL_S_PER_QUEUE * len(positions)))
        for topic in topics if adopts_queues else ():
            _adopt_queues(client, topic, positions)


def _adopt_queues(client: BlockingClient, topic: str, positions: Positions) -> None:
    new = [queue for queue in client.read_queues(topic) if queue not in positions]
    if new:
        positions.update({queue: first for queue, (first, _) in client.bounds(new).items()})


def tag_filter(tags: str) -> Callable[[ReceivedMessage], bool]:
    """Return a test for messages with one of the tags; brokers only compare hashes."""
    wanted = {tag.strip() for tag in tags.split("||")} - {""}
    if not wanted or "*" in wanted:
        return lambda message: True
    return lambda message: message.tags in wanted


def commit(client: BlockingClient, group: str, positions: Mapping[MessageQueue, int]) -> None:
    """Commit positions of a group; a broker that did not take one is asked for no other.

    Raises:
        PymqError: a broker could not be reached, or refused; the first one's error. A note says
            which queues are committed.
    """
    failures: dict[str, PymqError] = {}
    done: list[MessageQueue] = []
    for queue, offset in positions.items():
        if queue.broker_name in failures:
            continue
        try:
            client.commit_offset(group, queue, offset)
        except PymqError as error:
            failures[queue.broker_name] = error
        else:
            done.append(queue)
    if failures:
        first = next(iter(failures.values()))
        rest = [queue for queue in positions if queue not in done]
        first.add_note(f"committed: {_numbers(done)}; not, or not for certain: {_numbers(rest)}")
        raise first


def _numbers(queues: list[MessageQueue]) -> str:
    """Return ``broker-a:0,1 broker-b:0,1``."""
    found: dict[str, list[str]] = {}
    for queue in queues:
        found.setdefault(queue.broker_name, []).append(str(queue.queue_id))
    return " ".join(f"{name}:{','.join(ids)}" for name, ids in found.items()) or "none"
