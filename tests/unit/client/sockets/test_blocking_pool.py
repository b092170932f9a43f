"""One request of a blocking client, without a socket."""

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from pymq.client import operations
from pymq.client.cluster.config import ClientConfig
from pymq.client.cluster.routes import existing_route
from pymq.client.operations import Operation
from pymq.client.sockets import blocking_pool
from pymq.client.sockets.blocking_pool import BlockingPool
from pymq.errors import ConfigurationError, RemoteProtocolError, RequestTimeout
from pymq.net.blocking import BlockingChannel
from pymq.protocol.bodies import BrokerData, MessageQueue, QueueData, TopicRoute
from pymq.protocol.command import Command

CONFIG = ClientConfig(name_servers=("127.0.0.1:1",))


class Answering(BlockingChannel):
    """Answers everything at once."""

    def __init__(self, body: bytes) -> None:
        """No connection is needed."""
        self._body = body

    def request(self, request: Command, timeout_s: float) -> Command:
        return request.reply(0, body=self._body)


class AnsweringPool(BlockingPool):
    """A pool whose peers answer everything at once."""

    body = b""

    def channel(self, address: str, hint: str) -> BlockingChannel:
        return Answering(self.body)


class SilentPool(BlockingPool):
    """A pool whose peers answer nothing."""

    def channel(self, address: str, hint: str) -> BlockingChannel:
        return Silent(b"")


class Silent(Answering):
    """Answers nothing."""

    def request(self, request: Command, timeout_s: float) -> Command:
        raise RequestTimeout("no answer")


class Interrupted(Exception):
    """What Ctrl-C raises."""


@contextmanager
def interrupted(after: int) -> Iterator[None]:
    """Raise ``Interrupted`` after some call that ``blocking_pool`` makes; count them from 0.

    Calls of what is written in C: after these Python looks for signals. Not between the end of an
    ``__enter__`` and the block of its ``with``, although newer Pythons report that call, too.
    """
    calls = itertools.count()

    def profile(frame: FrameType, event: str, called: Any) -> None:
        is_ours = frame.f_code.co_filename == blocking_pool.__file__
        if not is_ours or event != "c_return" or called.__name__ == "__enter__":
            return
        if next(calls) == after:
            raise Interrupted

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before)


def test_a_client_can_be_used_after_a_request_that_was_interrupted_anywhere() -> None:
    pool = AnsweringPool(CONFIG)
    operation = operations.delete_expired_log()
    for call in itertools.count():
        try:
            with interrupted(call):
                pool.ask("127.0.0.1:2", operation)
        except Interrupted:
            pool.ask("127.0.0.1:2", operation)
        else:
            break
    assert call


def test_an_address_that_is_none_is_refused_by_name() -> None:
    pool = BlockingPool(CONFIG)
    with pytest.raises(ConfigurationError, match="'nonsense', expected host:port") as caught:
        pool.ask("nonsense", operations.delete_expired_log())
    assert caught.value.__cause__ is None  # it was its own, which is a cycle


def test_an_old_route_serves_while_name_servers_answer_what_cannot_be_one() -> None:
    def found(count: int) -> TopicRoute:
        queues = QueueData(broker_name="b", read_queue_count=count, write_queue_count=count, perm=6)
        return TopicRoute(
            queues=[queues], brokers=[BrokerData(broker_name="b", addresses={0: "127.0.0.1:2"})]
        )

    old = existing_route("T", found(2))
    pool = AnsweringPool(CONFIG, [old])
    pool.body = found(1 << 30).encode()
    pool.routes.doubt("T")
    assert pool.route("T") == old
    with pytest.raises(RemoteProtocolError, match="gives broker 'b' 1073741824 queues"):
        pool.route("U")


@pytest.mark.parametrize(
    ("operation", "is_told"),
    [
        (operations.max_offset(MessageQueue("T", "b", 0)), False),
        (operations.Pull(MessageQueue("T", "b", 0), 0, group="G"), False),
        (operations.delete_expired_log(), True),
    ],
)
def test_only_what_changes_something_may_be_done(operation: Operation[Any], is_told: bool) -> None:
    with pytest.raises(RequestTimeout, match="did not answer .* within") as caught:
        SilentPool(CONFIG).ask("127.0.0.1:2", operation)
    assert ("may have taken effect" in str(caught.value)) is is_told
