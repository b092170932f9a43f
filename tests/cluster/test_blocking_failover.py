"""BlockingClient while name servers and brokers go, come back empty, or fall silent."""

import pickle
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from tests.cluster.played import (
    QUEUE,
    Played,
    PlayedBroker,
    PlayedNameServer,
    closed_address,
    route_to,
)

from pymq.client.cluster.config import ClientConfig
from pymq.client.sending.send_encoding import encode_batch as encode_messages
from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import (
    BrokerSystemError,
    ConnectionFailed,
    MessageIllegal,
    PymqError,
    RequestTimeout,
    RouteNotFound,
)
from pymq.net.blocking import BlockingChannel
from pymq.protocol.batch_body import encode_batch
from pymq.protocol.bodies import TopicRoute
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.message import Message

#: For answers that come, and for reads that succeed, however busy the machine.
LIMIT_S = 60.0
#: For an answer that does not come.
SILENCE_S = 0.2
#: Routes are old at once, so that every use of one asks the name servers.
IMPATIENT = ClientConfig(
    name_servers=("127.0.0.1:1",), timeout_s=LIMIT_S, read_deadline_s=LIMIT_S, route_age_s=1e-9
)
#: A read that fails is tried again for a second, and not for the minute of those that succeed.
HASTY = replace(IMPATIENT, read_deadline_s=1.0)


class Silence:
    """Has clients give up soon what played servers leave unanswered, and wait for all the rest.

    A short time-out for everything would give up answers, too, that are late on a busy machine.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._unanswered: set[tuple[str, int]] = set()
        self._receive = BlockingChannel.receive
        patch.setattr(BlockingChannel, "receive", lambda *given: self._received(*given))
        patch.setattr("pymq.client.sockets.blocking_pool.PROBE_S", LIMIT_S)

    def of(self, server: Played) -> None:
        """Note what this server does not answer."""
        answer = server.answer

        def noted(request: Command) -> Command | None:
            response = answer(request)
            if response is None:
                self._unanswered.add((server.address, request.opaque))
            return response

        server.answer = noted

    def _received(self, channel: BlockingChannel, opaque: int, deadline_s: float) -> Command:
        key, has_read = (channel.peer, opaque), False
        while channel.is_open and opaque not in channel._answers and key not in self._unanswered:
            try:
                has_read |= bool(channel._readable.poll(5)) and channel._read()
            except PymqError:
                break  # the channel has recorded it
            if time.monotonic() > deadline_s:
                break
        if key in self._unanswered:
            self._unanswered.discard(key)
            deadline_s = min(deadline_s, time.monotonic() + SILENCE_S)
        try:
            return self._receive(channel, opaque, deadline_s)
        except RequestTimeout:
            channel._is_silent &= not has_read
            raise


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> Silence:
    return Silence(monkeypatch)


@pytest.fixture
def broker() -> Iterator[PlayedBroker]:
    with PlayedBroker() as played:
        yield played


@pytest.fixture
def name_server(broker: PlayedBroker) -> Iterator[PlayedNameServer]:
    with PlayedNameServer({"T": route_to(broker.address)}) as played:
        yield played


def client_of(*name_servers: str, config: ClientConfig = IMPATIENT) -> BulkClient:
    return BulkClient(name_servers, config=config)


def test_a_known_route_serves_while_all_name_servers_are_down(
    name_server: PlayedNameServer, caplog: pytest.LogCaptureFixture
) -> None:
    with client_of(name_server.address) as client:
        queues = client.read_queues("T")
        name_server.stop()
        assert client.bounds(queues) == {QUEUE: (0, 7)}
        assert client.read_queues("T") == client.write_queues("T") == [QUEUE]
        assert client.send(Message("T", b"x")).queue_offset == 7
        down = f"no name server of {name_server.address} answers: no connection to"
        assert f"old route of topic T: {down}" in caplog.text
        name_server.start()
        assert client.bounds(queues) == {QUEUE: (0, 7)}


def test_an_old_route_is_not_asked_for_at_every_use(
    name_server: PlayedNameServer, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(IMPATIENT, route_age_s=3600.0)
    with client_of(name_server.address, config=config) as client:
        queues = client.read_queues("T")
        client._pool.routes.doubt("T")
        name_server.stop()
        for _ in range(5):
            client.bounds(queues)
        assert caplog.text.count("old route of topic T") == 1


def test_an_unknown_topic_names_every_name_server_that_was_tried(
    name_server: PlayedNameServer,
) -> None:
    dead, also_dead = closed_address(), closed_address()
    with client_of(dead, also_dead) as client:
        for ask in (client.read_queues, client.write_queues, client.route):
            with pytest.raises(ConnectionFailed) as down:
                ask("T")
            assert dead in str(down.value) and also_dead in str(down.value)
    with client_of(dead, name_server.address) as client:
        with pytest.raises(RouteNotFound) as unknown:
            client.read_queues("nobodys")
        text = str(unknown.value)
        assert name_server.address in text and f"no connection to {dead}" in text


def test_a_name_server_that_has_just_started_does_not_end_a_known_topic(
    name_server: PlayedNameServer, broker: PlayedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Brokers register every 30 s: until then a restarted name server knows nothing.
    with client_of(name_server.address) as client:
        assert client.read_queues("T") == client.write_queues("T") == [QUEUE]
        name_server.routes = {"TBW102": route_to(broker.address, 4)}
        assert client.read_queues("T") == [QUEUE]
        assert client.bounds([QUEUE]) == {QUEUE: (0, 7)}
        assert client.write_queues("T") == [QUEUE]  # not the ones it would be created with
        monkeypatch.setattr("pymq.client.cluster.route_table.MISSING_S", 0.0)
        for _ in range(2):
            with pytest.raises(RouteNotFound, match="'T'"):
                client.read_queues("T")
        assert len(client.write_queues("T")) == 4


def test_a_name_server_that_refuses_is_no_reason_to_stop(
    name_server: PlayedNameServer, broker: PlayedBroker
) -> None:
    with PlayedNameServer() as ill:
        ill.refusal = 1
        with client_of(ill.address, name_server.address) as client:
            assert client.read_queues("T") == [QUEUE]
            name_server.refusal = 1
            assert client.bounds([QUEUE]) == {QUEUE: (0, 7)}
            with pytest.raises(BrokerSystemError, match="not ready"):
                client.read_queues("unknown")


def test_a_connection_that_fell_silent_is_given_up(
    name_server: PlayedNameServer, broker: PlayedBroker, silence: Silence
) -> None:
    # As when a firewall has forgotten it: nothing comes any more, not even an end.
    silence.of(broker)
    with client_of(name_server.address, config=HASTY) as client:
        client.bounds([QUEUE])
        before = broker.accepted
        broker.is_silent = True
        client_once = replace(IMPATIENT, send_retries=0)
        with client_of(name_server.address, config=client_once) as other:
            with pytest.raises(RequestTimeout):
                other.send(Message("T", b"x"))
            broker.is_silent = False
            assert other.send(Message("T", b"x")).queue_offset == 7
        assert broker.accepted == before + 2
        broker.is_silent = True
        with pytest.raises(RequestTimeout):
            client.bounds([QUEUE])
        assert broker.accepted > before + 2


def test_connections_to_brokers_that_moved_are_closed(name_server: PlayedNameServer) -> None:
    with client_of(name_server.address) as client, PlayedBroker() as elsewhere:
        client.bounds([QUEUE])
        channels = client._pool._channels
        assert len(channels) == 2
        name_server.routes["T"] = route_to(elsewhere.address)
        client.bounds([QUEUE])
        assert set(channels) == {name_server.address, elsewhere.address}


def test_an_order_topic_is_sent_to_while_one_of_its_brokers_is_away(
    name_server: PlayedNameServer, broker: PlayedBroker
) -> None:
    route = route_to(broker.address)
    name_server.routes["T"] = TopicRoute(
        queues=route.queues, brokers=route.brokers, order_topic_conf="away:1;broker-a:1"
    )
    with client_of(name_server.address) as client:
        for _ in range(4):
            assert client.send(Message("T", b"x")).queue == QUEUE
        away = replace(QUEUE, broker_name="away")
        assert client.write_queues("T") == [away, QUEUE]
        with pytest.raises(RouteNotFound, match="no master of broker 'away'"):
            client.send(Message("T", b"x"), away)
    assert broker.count(RequestCode.SEND_MESSAGE_V2) == 4


def test_routes_of_another_client_serve_without_a_name_server(
    name_server: PlayedNameServer, broker: PlayedBroker
) -> None:
    settled = replace(HASTY, route_age_s=3600.0)
    with client_of(name_server.address, config=settled) as client:
        queues = client.read_queues("T")
        routes = pickle.loads(pickle.dumps(client.known_routes()))
    assert [route.topic for route in routes] == ["T"]
    name_server.stop()
    dead = (closed_address(),)
    with BulkClient(dead, config=settled, routes=routes) as other:
        assert other.bounds(queues) == {QUEUE: (0, 7)}
        assert other.send(Message("T", b"x"), QUEUE).queue_offset == 7
        broker.stop()
        with pytest.raises(ConnectionFailed):
            other.bounds(queues)


def test_a_missing_route_is_waited_for_when_the_topic_is_known_to_exist(
    name_server: PlayedNameServer, broker: PlayedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """As during a restart of the only broker: the name server knows of nothing for a while."""
    route = name_server.routes.pop("T")
    name_server.routes["TBW102"] = route_to(broker.address, 4)
    awaiting = replace(IMPATIENT, awaits_routes=True, send_retries=100)
    body = encode_batch([(0, b"x", b"")])
    with client_of(name_server.address) as client, pytest.raises(RouteNotFound):
        client.bounds([QUEUE])
    for use in (
        lambda client: client.bounds([QUEUE]),
        lambda client: client.send_batches(QUEUE, [body]),
    ):
        name_server.routes.pop("T", None)
        back = threading.Timer(0.1, name_server.routes.__setitem__, ("T", route))
        with client_of(name_server.address, config=awaiting) as client:
            back.start()
            use(client)
        back.join()
    name_server.routes.pop("T")
    with (
        client_of(name_server.address, config=awaiting) as client,
        pytest.raises(RouteNotFound),  # not the queues with which it would be created
    ):
        client.write_queues("T")
    assert broker.count(RequestCode.SEND_BATCH_MESSAGE) == 1


def test_a_long_wait_is_logged_once(
    name_server: PlayedNameServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # At the first failure: later, how much time is left depends on how fast this machine is.
    monkeypatch.setattr("pymq.client.sockets.backoff.WARN_AFTER_S", 0.0)
    name_server.routes.clear()
    awaiting = replace(HASTY, awaits_routes=True)
    with (
        client_of(name_server.address, config=awaiting) as client,
        pytest.raises(RouteNotFound, match="'T'"),
    ):
        client.bounds([QUEUE])
    assert caplog.text.count("trying again for up to 1 s more: topic 'T'") == 1


# ------------------------------------------------------------------ was a failed send stored?


class RefusingBroker(PlayedBroker):
    """Answers sends with the codes of ``answers``; ``None`` is silence. Without one: stored."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[int | None] = []
        self.on_silence: Callable[[], object] = lambda: None

    def _answer(self, request: Command) -> Command | None:
        codes = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
        if request.code not in codes:
            return super()._answer(request)
        code = self.answers.pop(0) if self.answers else 0
        if code is None:
            self.on_silence()
            return None
        fields = {"msgId": "ID", "queueId": (request.fields or {})["e"], "queueOffset": "7"}
        return request.reply(code, "as wanted", fields)


Send = Callable[[BulkClient], object]
BATCH = encode_messages([Message("T", b"x")], ["ID"], 1000).body
SENDS: dict[str, Send] = {
    "single": lambda client: client.send(Message("T", b"x")),
    "batch": lambda client: client.send_batch(None, [Message("T", b"x")]),
    "pipeline": lambda client: client.send_batches(QUEUE, [BATCH] * 3, in_flight_max=1),
}


@pytest.mark.parametrize("name", SENDS)
@pytest.mark.parametrize("first", [None, 1])
def test_one_attempt_that_may_have_stored_it_makes_the_failure_unknown(
    name: str, first: int | None, silence: Silence
) -> None:
    with RefusingBroker() as broker, PlayedNameServer({"T": route_to(broker.address)}) as known:
        silence.of(broker)
        config = replace(IMPATIENT, send_retries=2)
        with client_of(known.address, config=config) as client:
            broker.answers = [first, 2, 13]
            with pytest.raises(MessageIllegal, match="may have stored it") as refused:
                SENDS[name](client)
            assert not refused.value.outcome_known
            broker.answers = [2, 2, 13]
            with pytest.raises(MessageIllegal) as refused:
                SENDS[name](client)
            assert refused.value.outcome_known


def test_a_route_lost_between_two_attempts_does_not_hide_the_first(silence: Silence) -> None:
    with (
        RefusingBroker() as broker,
        PlayedNameServer({"T": route_to(broker.address)}) as known,
        client_of(known.address) as client,
    ):
        silence.of(broker)
        broker.answers = [None]
        broker.on_silence = lambda: known.routes.update(T=TopicRoute())
        with pytest.raises(RouteNotFound, match="no queue can be written to") as lost:
            client.send(Message("T", b"x"))
        assert not lost.value.outcome_known


def test_of_several_batches_in_flight_one_refusal_leaves_the_others_unknown(
    silence: Silence,
) -> None:
    with (
        RefusingBroker() as broker,
        PlayedNameServer({"T": route_to(broker.address)}) as known,
        client_of(known.address) as client,
    ):
        silence.of(broker)
        broker.answers = [0, 13, 0]
        with pytest.raises(MessageIllegal, match="1 batches were not answered") as refused:
            client.send_batches(QUEUE, [BATCH] * 3, in_flight_max=3)
        assert not refused.value.outcome_known
        assert refused.value.__notes__ == ["1 batches were acknowledged before"]
        broker.answers = [None]  # and then all of them are stored
        assert len(client.send_batches(QUEUE, [BATCH] * 3, in_flight_max=3)) == 3
