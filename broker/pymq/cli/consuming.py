"""Implements ``pymq consume``; its arguments are in ``messages``."""

from collections.abc import Callable
from datetime import datetime

from pymq.cli import reading
from pymq.cli.exits import with_notes
from pymq.cli.queues import choose
from pymq.cli.streams import OutputFailed
from pymq.client.cluster.network import Network
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import ConfigurationError, PymqError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import ReceivedMessage


def consume(
    client: BlockingClient,
    topic: str,
    *,
    network: Network,
    timeout_s: float,
    group: str | None,
    start: str | None,
    tags: str,
    follow: bool,
    count: int | None,
    queue: str | None,
    show: Callable[[ReceivedMessage], None],
) -> None:
    """Show messages as they arrive, or those that are there.

    Topic and group have their whole names, those that brokers have for them.

    Raises:
        ConfigurationError: ``start`` is invalid, or cannot be combined with the rest.
        PymqError: the topic does not exist, could not be read, or has less than ``count``.
    """
    begin = reading.parse_start(
        start or ("latest" if follow else "earliest"), now=datetime.now().astimezone()
    )
    shown = _Shown(show, count)
    if group is not None and queue is not None:
        raise ConfigurationError("--queue with --group: members share all queues; leave one out")
    if group is None:
        positions = reading.start_positions(client, topic, begin)
        if queue is not None:
            only = choose(list(positions), topic, queue)
            positions = {only: positions[only]}
        if follow:
            source = reading.tail(client, positions, tags=tags, adopts_queues=queue is None)
        else:
            source = reading.backlog(client, positions, tags=tags)
        for message in source:
            if not shown.add(message):
                break
    elif follow:
        _join(client, network, timeout_s, topic, group, begin, tags, shown)
    else:
        _drain(client, network, timeout_s, topic, group, begin, tags, shown)
    if count is not None and shown.count < count:
        raise PymqError(f"topic {topic!r} has {shown.count} messages, --count asked for {count}")


class _Shown:
    """Shows messages up to a count."""

    def __init__(self, show: Callable[[ReceivedMessage], None], count_max: int | None) -> None:
        self._show = show
        self._count_max = count_max
        self.count = 0

    def add(self, message: ReceivedMessage) -> bool:
        """Show a message, and return whether another one is wanted."""
        self._show(message)
        self.count += 1
        return self.count != self._count_max


def _join(
    client: BlockingClient,
    network: Network,
    timeout_s: float,
    topic: str,
    group: str,
    begin: reading.Start,
    tags: str,
    shown: _Shown,
) -> None:
    """Share the topic with the other members of a group; a printed message is acknowledged."""
    from pymq.client.threaded.consumer import Consumer  # needs asyncio, unlike the other ways

    if isinstance(begin, int):
        raise ConfigurationError(
            f"--from {begin} with --group: expected earliest, latest or a time; an offset needs "
            "--no-follow, or no --group"
        )
    client.route(topic)  # a consumer would silently wait for a topic that does not exist
    moment = begin.astimezone() if isinstance(begin, datetime) else begin
    consumer = Consumer(
        client.name_servers, group, from_where=moment, timeout_s=timeout_s, network=network
    )
    with consumer.subscribe(topic, tags):
        for message in consumer.messages():
            if not shown.add(message):
                break


def _drain(
    client: BlockingClient,
    network: Network,
    timeout_s: float,
    topic: str,
    group: str,
    begin: reading.Start,
    tags: str,
    shown: _Shown,
) -> None:
    """Read what is there from a group's offsets on, and commit for it; it must have no members."""
    from pymq.client.threaded.admin import Admin

    with Admin(
        client.name_servers, timeout_s=timeout_s, connect_timeout_s=timeout_s, network=network
    ) as admin:
        members = admin.groups.members(group).connections
    if members:
        raise PymqError(
            f"members of group {group!r} are connected ({len(members)}): stop them, or leave out "
            "--no-follow to join them"
        )
    positions = reading.committed_positions(client, topic, group, begin)
    ended: BaseException | None = None
    try:
        for message in reading.backlog(client, positions, tags=tags, group=group):
            if not shown.add(message):
                queue = MessageQueue(topic, message.broker_name, message.queue_id)
                positions[queue] = message.queue_offset + 1
                break
    except (PymqError, OutputFailed, KeyboardInterrupt) as error:
        ended = error
        raise
    finally:
        try:
            reading.commit(client, group, positions)
        except PymqError as error:
            if ended is None:
                raise
            ended.add_note(with_notes(error))
