"""The asyncio clients and their blocking faces take the same arguments and offer the same."""

import asyncio
import concurrent.futures
import inspect
import typing
from collections.abc import AsyncIterator, Iterator

import pytest

from pymq import blocking
from pymq.client.administration import (
    admin,
    brokers,
    groups,
    messages,
    offsets,
    replicas,
    sinks,
    topics,
)
from pymq.client.consuming import consumer
from pymq.client.pulling import pull_consumer, reader, simple_consumer
from pymq.client.sending import batcher, producer, transaction
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.client.threaded import admin as threaded_admin
from pymq.errors import LocalProtocolError
from pymq.protocol.message import Message

PAIRS = {
    "Producer": (producer.Producer, blocking.Producer),
    "Batcher": (batcher.Batcher, blocking.Batcher),
    "Consumer": (consumer.Consumer, blocking.Consumer),
    "PullConsumer": (pull_consumer.PullConsumer, blocking.PullConsumer),
    "Reader": (reader.Reader, blocking.Reader),
    "SimpleConsumer": (simple_consumer.SimpleConsumer, blocking.SimpleConsumer),
    "Transaction": (transaction.Transaction, blocking.Transaction),
    "Admin": (admin.Admin, blocking.Admin),
    "Topics": (topics.Topics, threaded_admin.Topics),
    "Groups": (groups.Groups, threaded_admin.Groups),
    "Offsets": (offsets.Offsets, threaded_admin.Offsets),
    "Messages": (messages.Messages, threaded_admin.Messages),
    "Brokers": (brokers.Brokers, threaded_admin.Brokers),
    "Replicas": (replicas.Replicas, threaded_admin.Replicas),
    "Sinks": (sinks.Sinks, threaded_admin.Sinks),
}
#: What one of the two lacks on purpose.
ONLY_ASYNCIO = {
    "Batcher.abandon",  # for its producer
    "Producer.wait_room",  # send_nowait of the blocking one waits by itself
    "Batcher.wait_room",
}
ONLY_BLOCKING = {
    "Consumer.receive",  # `anext` of a loop is the asyncio one's
    "Consumer.messages",
    "Consumer.acknowledge",  # there are no tasks that could tell whose message it is
}
#: Arguments that differ.
OTHER_ARGUMENTS = {
    "Batcher.__init__": {"producer"},  # of its own face
    "Transaction.__init__": {"producer"},
    # Parts of Admin, which makes them.
    **{
        f"{part}.__init__": {"asking", "groups", "part", "face"}
        for part in ("Topics", "Groups", "Offsets", "Messages", "Brokers", "Replicas", "Sinks")
    },
}


def members(owner: type) -> dict[str, typing.Any]:
    """Return the public methods and properties of a class, and its constructor."""
    return {
        name: member.fget if isinstance(member, property) else member
        for name, member in inspect.getmembers_static(owner)
        if (not name.startswith("_") or name == "__init__")
        and (inspect.isfunction(member) or isinstance(member, property))
    }


def signature(function: typing.Any, leave_out: set[str]) -> tuple[list[inspect.Parameter], object]:
    """Return arguments and result; futures and iterators of either kind count as one."""
    hints = typing.get_type_hints(function)
    parameters = [
        parameter.replace(annotation=hints.get(name))
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in leave_out
    ]
    result = hints.get("return")
    if typing.get_origin(result) in (asyncio.Future, concurrent.futures.Future):
        result = ("future", *typing.get_args(result))
    if typing.get_origin(result) in (AsyncIterator, Iterator):
        result = ("iterator", *typing.get_args(result))
    return parameters, result


@pytest.mark.parametrize("name", PAIRS)
def test_both_offer_the_same(name: str) -> None:
    ours, theirs = ({f"{name}.{member}" for member in members(owner)} for owner in PAIRS[name])
    assert ours - theirs <= ONLY_ASYNCIO, "offer it in its blocking face, too"
    assert theirs - ours <= ONLY_BLOCKING
    assert not (ONLY_ASYNCIO | ONLY_BLOCKING) & ours & theirs, "both have it"


@pytest.mark.parametrize("name", PAIRS)
def test_both_take_the_same_arguments(name: str) -> None:
    ours, theirs = (members(owner) for owner in PAIRS[name])
    for member in ours.keys() & theirs.keys():
        leave_out = OTHER_ARGUMENTS.get(f"{name}.{member}", set())
        assert signature(ours[member], leave_out) == signature(theirs[member], leave_out), member


def test_the_overloads_are_the_same() -> None:
    ours, theirs = (
        [signature(overload, set()) for overload in typing.get_overloads(owner.run)]
        for owner in (consumer.Consumer, blocking.Consumer)
    )
    assert ours == theirs and len(ours) == 2


def test_a_batch_of_one_message_is_refused_by_name_everywhere() -> None:
    alone: typing.Any = Message("T", b"x")
    name_server = "127.0.0.1:1"
    with pytest.raises(LocalProtocolError, match="expected several messages.*sent with send"):
        BlockingClient(name_server).send_batch(None, alone)
    with pytest.raises(LocalProtocolError, match="expected several messages.*sent with send"):
        blocking.Producer(name_server).send_batch(alone)
    with pytest.raises(LocalProtocolError, match="expected several messages.*sent with send"):
        asyncio.run(producer.Producer(name_server).send_batch(alone))
