"""SQL92 filters: the official classes, an official broker and ours agree on what they select."""

import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

import pytest
from tests.administration import admin_of
from tests.interop.conftest import RealCluster, require_peers
from tests.interop.golden import Program
from tests.interop.java_admin import JavaAdmin
from tests.interop.java_client import JavaProducer, JavaPushConsumer
from tests.interop.java_scenarios import QUEUE_COUNT, make_site
from tests.interop.java_values import JavaError, call
from tests.interop.jvm import JavaClient
from tests.unit.filter.sql_expressions import Expressions, jumbled, text

from pymq import blocking
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import FilterSyntaxError
from pymq.filter.evaluate import compile_sql92
from pymq.net.blocking import BlockingChannel
from pymq.protocol.codes import PullFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.pull import PullRequest
from pymq.protocol.message import Message
from pymq.protocol.record import decode_records
from pymq.testing import Cluster

pytestmark = [pytest.mark.interop, pytest.mark.by_turns("version")]

VERSION = "5.3.3"
JUMBLED_COUNT = 10_000
EXPRESSION_COUNT = 5_000
PROPERTIES_COUNT = 6
PULL_COUNT = 2_000
MESSAGE_COUNT = 32
TIMEOUT_S = 60.0


def official(
    home: Path, expressions: list[str], samples: list[dict[str, str]]
) -> Iterator[list[bool] | None]:
    """Yield which samples the filter classes of the official broker select by each expression.

    None: it does not parse. All are asked at once; see ``java/FilterOracle.java``.
    """
    require_peers(VERSION)
    asked = [("sample", *chain.from_iterable(one.items())) for one in samples]
    asked += [("select", one) for one in expressions]
    questions, answers = home / "questions", home / "answers"
    questions.write_text(
        "".join(
            "\t".join([kind, *(one.encode().hex() for one in texts)]) + "\n"
            for kind, *texts in asked
        )
    )
    with Program("FilterOracle", VERSION, home, [questions, answers]) as java:
        java.wait_end()
    lines = answers.read_text().splitlines()
    assert len(lines) == len(expressions)
    for line in lines:
        yield None if line == "-" else [mark == "1" for mark in line]


def ours(expression: str, samples: list[dict[str, str]]) -> list[bool] | None:
    try:
        compiled = compile_sql92(expression)
    except FilterSyntaxError:
        return None
    return [compiled.matches(properties) for properties in samples]


def samples_of(seed: int) -> list[dict[str, str]]:
    source = Expressions(seed)
    return [source.properties() for _ in range(PROPERTIES_COUNT)]


def test_the_official_classes_agree_on_what_parses(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    dice = random.Random(seed)
    samples = samples_of(seed)
    expressions = [jumbled(dice) for _ in range(JUMBLED_COUNT)]
    parsed = 0
    for expression, theirs in zip(
        expressions, official(tmp_path, expressions, samples), strict=True
    ):
        assert ours(expression, samples) == theirs, (expression, samples)
        parsed += theirs is not None
    assert 0.1 < parsed / JUMBLED_COUNT < 0.9


def test_the_official_classes_agree_on_what_is_selected(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    samples = samples_of(seed)
    expressions = [
        text(Expressions(seed + number).condition()) for number in range(EXPRESSION_COUNT)
    ]
    selected = 0
    for expression, theirs in zip(
        expressions, official(tmp_path, expressions, samples), strict=True
    ):
        assert theirs is not None, expression
        assert ours(expression, samples) == theirs, (expression, samples)
        selected += sum(theirs)
    assert 0.1 < selected / EXPRESSION_COUNT / PROPERTIES_COUNT < 0.9


# ------------------------------------------------------------------------------------- brokers


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(broker={"property_filter": True}) as running:
        yield running


class FilledQueue:
    """A queue of one broker with messages of given properties, and a connection to pull it."""

    def __init__(self, name_server: str, address: str, topic: str) -> None:
        self._name_server = name_server
        self._topic = topic
        host, _, port = address.rpartition(":")
        self.channel = BlockingChannel.connect(host, int(port), timeout_s=TIMEOUT_S)

    def fill(self, samples: list[dict[str, str]]) -> None:
        with BlockingClient(self._name_server) as client:
            admin_of(client).topics.create(self._topic, queue_count=1)
            for number, properties in enumerate(samples):
                user = {name: value for name, value in properties.items() if name != "TAGS"}
                tags = properties.get("TAGS")
                client.send(Message(self._topic, b"%d" % number, tags=tags, properties=user))
            deadline_s = time.monotonic() + TIMEOUT_S
            (queue,) = client.read_queues(self._topic)
            # RocketMQ acknowledges before a message is in its queue.
            while client.bounds([queue])[queue] != (0, len(samples)):
                assert time.monotonic() < deadline_s, "some are not in their queue"
                time.sleep(0.01)

    def begin(self, expression: str) -> int:
        request = PullRequest(
            consumer_group="sql",
            topic=self._topic,
            queue_id=0,
            queue_offset=0,
            message_count_max=MESSAGE_COUNT,
            sys_flag=int(PullFlag.SUBSCRIPTION),
            commit_offset=0,
            suspend_timeout_ms=0,
            subscription=expression,
            sub_version=0,
            expression_type="SQL92",
        )
        command = Command(RequestCode.PULL_MESSAGE, request.to_fields())
        return self.channel.send(command, time.monotonic() + TIMEOUT_S)

    def end(self, number: int) -> tuple[int, str, list[int]]:
        """Return the answer's code, the offset to go on with, and which messages came."""
        answer = self.channel.receive(number, time.monotonic() + TIMEOUT_S)
        found = [int(record.body) for record in decode_records(answer.body)]
        return answer.code, str((answer.fields or {}).get("nextBeginOffset")), found


def sendable(properties: dict[str, str]) -> dict[str, str]:
    """Leave out what no producer can send."""
    return {name: value for name, value in properties.items() if value.strip()}


def test_brokers_select_the_same_messages(
    real_cluster: Callable[[str], RealCluster], cluster: Cluster, seed: int
) -> None:
    print(f"seed {seed}")
    real = real_cluster(VERSION)
    topic = f"sql-{uuid.uuid4().hex[:8]}"
    source = Expressions(seed)
    samples = [sendable(source.properties()) for _ in range(MESSAGE_COUNT)]
    queues = (
        FilledQueue(real.name_server.address, real.broker.address, topic),
        FilledQueue(cluster.name_server, cluster.broker_address, topic),
    )
    for queue in queues:
        queue.fill(samples)
    for number in range(PULL_COUNT):
        expression = text(Expressions(seed + number).condition())
        begun = [queue.begin(expression) for queue in queues]
        theirs, own = (queue.end(one) for queue, one in zip(queues, begun, strict=True))
        assert own == theirs, (expression, samples)
    # An expression that does not parse is where we differ: RocketMQ leaves it out of account.
    theirs, own = (queue.end(queue.begin("a >")) for queue in queues)
    assert theirs[0] == ResponseCode.SUCCESS and len(theirs[2]) == MESSAGE_COUNT
    assert own[0] == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    for queue in queues:
        queue.channel.close()


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_java_consumers_get_what_they_select(
    cluster: Cluster,
    java_client: Callable[[str], JavaClient],
    java_admin: Callable[[str, str], JavaAdmin],
    version: str,
) -> None:
    site = make_site(
        version,
        java_client,
        java_admin,
        name_server=cluster.name_server,
        broker_name=cluster.broker_name,
        broker_address=cluster.broker_address,
    )
    sql = "(n BETWEEN 10 AND 14 OR word IN ('x', 'it''s')) AND TAGS IS NOT NULL"

    def send(producer: JavaProducer, numbers: Iterable[int]) -> set[bytes]:
        """Send messages; return the bodies of those that are wanted."""
        wanted = set()
        for number in numbers:
            word = ("x", "y", "it's")[number % 3]
            producer.send(
                site.topic,
                b"%d" % number,
                tags="a" if number % 2 else None,
                properties={"n": str(number), "word": word},
                queue_id=number % QUEUE_COUNT,
            )
            if number % 2 and (10 <= number <= 14 or word != "y"):
                wanted.add(b"%d" % number)
        return wanted

    with site.producer() as producer:
        wanted = send(producer, range(40))
        with site.push(sql, selector="sql") as push:
            assert {one.body for one in push.wait_count(len(wanted))} == wanted
            later = send(producer, range(40, 60))  # to pulls that are held
            everything = push.wait_count(len(wanted | later))
            assert sorted(one.body for one in everything) == sorted(wanted | later)
    with site.lite_pull("lite-" + site.group, expression=sql, selector="sql") as lite:
        polled = lite.poll_count(len(wanted | later))
        assert {one.body for one in polled} == wanted | later
    with site.pull("pull-" + site.group) as pull:
        pulled = set()
        queues = pull.queues()
        pull.pull(min(queues), 0)  # now it knows the broker
        # Before it has heard of its version, too, it takes the broker for one without SQL92.
        balance = call(pull.java.getDefaultMQPullConsumerImpl).getRebalanceImpl()
        call(balance.getmQClientFactory().sendHeartbeatToAllBrokerWithLock)
        for queue in queues:
            _, following, messages = pull.pull(queue, 0, expression=sql, selector="sql")
            pulled |= {one.body for one in messages}
            assert following == 15
        assert pulled == wanted | later
        with pytest.raises(JavaError) as refused:
            pull.pull(queue, 0, expression="n >", selector="sql")
        assert refused.value.response_code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_java_consumers_do_not_start_with_a_filter_that_cannot_be(
    cluster: Cluster, java_client: Callable[[str], JavaClient], version: str
) -> None:
    client = java_client(version)
    topic = f"sql-{uuid.uuid4().hex[:8]}"
    with Cluster() as plain:
        for running, sql, code in (
            (cluster, "n >", ResponseCode.SUBSCRIPTION_PARSE_FAILED),
            (plain, "n > 5", ResponseCode.SYSTEM_ERROR),
        ):
            with BlockingClient(running.name_server) as admin:
                admin_of(admin).topics.create(topic, queue_count=1)
            with pytest.raises(JavaError) as refused:
                JavaPushConsumer(
                    client, f"g-{topic}", running.name_server, topic, sql, selector="sql"
                )
            assert refused.value.response_code == code


def test_our_consumers_select_at_an_official_broker(
    real_cluster: Callable[[str], RealCluster],
) -> None:
    name_server = real_cluster(VERSION).name_server.address
    topic = f"sql-{uuid.uuid4().hex[:8]}"
    with BlockingClient(name_server) as client:
        admin_of(client).topics.create(topic, queue_count=1)
        for number in range(20):
            client.send(Message(topic, b"%d" % number, properties={"n": str(number)}))
    consumer = blocking.Consumer(name_server, f"g-{topic}", from_where="earliest")
    with consumer.subscribe(topic, sql="n > 15") as started:
        messages = started.messages(timeout_s=60.0)
        assert [int(next(messages).body) for _ in range(4)] == [16, 17, 18, 19]
