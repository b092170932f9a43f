"""What commands say of what they have done when Ctrl-C ends them."""

import signal
import time
from typing import Any

import pytest
from tests.cluster.cli_processes import DEADLINE_S, running
from tests.cluster.played import Played, route_to

from pymq.cli import replaying
from pymq.cli.output import Form
from pymq.client.operations import SendResult, SendStatus
from pymq.protocol.bodies import BrokerData, ClusterInfo, MessageQueue
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.message import Message


def server(silent_at: RequestCode) -> Played:
    """Return a name server and broker in one, with topic T; it does not answer one request."""

    def answer(request: Command) -> Command | None:
        if request.code == silent_at:
            return None
        body = b""
        match request.code:
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                broker = BrokerData(broker_name="a", cluster="c", addresses={0: played.address})
                body = ClusterInfo(
                    brokers={"a": broker}, clusters={"c": frozenset(["a"])}
                ).encode()
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                body = route_to(played.address).encode()
        return request.reply(0, body=body)

    played = Played(answer)
    return played


@pytest.mark.parametrize(
    ("arguments", "silent_at", "said"),
    [
        (
            ("topic", "create", "T"),
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            "pymq topic: interrupted: it may be done\n",
        ),
        (("topic", "status", "T"), RequestCode.GET_TOPIC_STATS_INFO, ""),
    ],
)
def test_what_may_be_done_is_told(
    arguments: tuple[str, ...], silent_at: RequestCode, said: str
) -> None:
    with server(silent_at) as played:
        where = ("-n", played.address, "--timeout", "120")
        with running(*arguments, *where) as process:
            deadline_s = time.monotonic() + DEADLINE_S
            while not played.count(silent_at):
                assert time.monotonic() < deadline_s
                time.sleep(0.02)
            assert process.stop(signal.SIGINT) == (130, said)


@pytest.mark.parametrize(
    ("is_sending", "said"),
    [
        (True, "interrupted: 256 messages were sent, and perhaps 4 more"),
        (False, "interrupted: 256 messages were sent"),
    ],
)
def test_what_was_sent_before_is_told(is_sending: bool, said: str) -> None:
    class Client:
        def __init__(self) -> None:
            self.batches = 0

        def send_batch(self, queue: None, messages: list[Message]) -> SendResult:
            self.batches += 1
            if self.batches == 2:
                raise KeyboardInterrupt
            at = MessageQueue("T", "a", 0)
            return SendResult(SendStatus.OK, None, "", at, queue_offset=0)

    def messages() -> Any:
        yield from [Message("T", b"x")] * 257
        if not is_sending:
            raise KeyboardInterrupt
        yield from [Message("T", b"x")] * 3

    wanted: Any = Client()
    with pytest.raises(KeyboardInterrupt) as caught:
        replaying.send_all(wanted, messages(), None, form=Form.JSON, is_shown=False)
    assert caught.value.__notes__ == [said]
