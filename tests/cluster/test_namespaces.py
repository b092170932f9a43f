"""Namespaces: clients say ``orders``, brokers keep ``shop%orders``."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.running import run
from tests.handling import handle_until

from pymq import (
    Batcher,
    BlockingClient,
    ConfigurationError,
    GroupNotExist,
    Message,
    MessageQueue,
    Network,
    Producer,
    ReceivedMessage,
    TransactionStatus,
    allocation,
    blocking,
)
from pymq.testing import Cluster

SHOP = Network(namespace="shop")
LIMIT_S = 60.0
TIMEOUT_S = 30.0
#: What a busy machine takes long for is not to be asked for twice.
OF_SHOP: dict[str, Any] = {"network": SHOP, "timeout_s": TIMEOUT_S}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    settings = {"delay_levels_ms": (100,) * 18}
    with Cluster(brokers=2, store_settings=settings) as running:
        yield running


def until(condition: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {LIMIT_S} s: {what}"
        time.sleep(0.02)


def bodies(cluster: Cluster, topic: str) -> set[bytes]:
    return {message.body for message in cluster.messages(topic)}


def test_what_is_sent_lies_under_whole_names(cluster: Cluster) -> None:
    with blocking.Producer(cluster.name_server, **OF_SHOP) as producer:
        receipt = producer.send(Message("sent", b"1"))
        assert receipt.queue.topic == "sent"
        (first, _) = producer.send_batch([Message("sent", b"2"), Message("sent", b"3")])
        assert first.queue.topic == "sent"
        queues = producer.queues("sent")
        assert {queue.topic for queue in queues} == {"sent"}
        assert producer.send(Message("sent", b"4"), queue=queues[0]).queue == queues[0]
        seen: list[MessageQueue] = []

        def choose(offered: list[MessageQueue]) -> MessageQueue:
            seen.extend(offered)
            return offered[0]

        producer.send(Message("sent", b"5"), selector=choose)
        assert {queue.topic for queue in seen} == {"sent"}
        # A name that has its namespace keeps it.
        assert producer.send(Message("shop%sent", b"6")).queue.topic == "shop%sent"
        producer.send_one_way(Message("sent", b"7"))
    until(lambda: len(bodies(cluster, "shop%sent")) == 7, "all are stored")
    assert bodies(cluster, "sent") == set()
    (one,) = [message for message in cluster.messages("shop%sent") if message.body == b"1"]
    assert one.properties["INSTANCE_ID"] == "shop"


def test_columns_and_gathered_messages(cluster: Cluster) -> None:
    pytest.importorskip("pyarrow")

    async def send() -> None:
        async with Producer(cluster.name_server, **OF_SHOP) as producer:
            async with Batcher(producer, linger_s=0.01) as batcher:
                receipt = await batcher.send(Message("columns", b"gathered"))
                assert receipt.queue.topic == "columns"
            receipts = await producer.send_columns({"body": [b"a", b"b"]}, topic="columns")
            assert receipts.is_stored.all()

    run(send())
    assert bodies(cluster, "shop%columns") == {b"gathered", b"a", b"b"}
    with blocking.Reader(cluster.name_server, **OF_SHOP) as reader:
        tables = [batch.to_arrow() for batch in reader.read("columns")]
    found = {bytes(body) for table in tables for body in table["body"].to_pylist()}
    assert found == {b"gathered", b"a", b"b"}


@pytest.mark.parametrize("orderly", [False, True])
def test_a_group_consumes_retries_and_rejects(cluster: Cluster, orderly: bool) -> None:
    topic, group = f"consumed-{orderly}".lower(), f"buyers-{orderly}".lower()
    with blocking.Producer(cluster.name_server, **OF_SHOP) as producer:
        for number in range(8):
            producer.send(Message(topic, b"%d" % number, keys="k"))
    seen: list[tuple[str, bytes, int]] = []
    consumer = blocking.Consumer(
        cluster.name_server,
        group,
        from_where="earliest",
        orderly=orderly,
        suspend_s=0.05,
        **OF_SHOP,
    ).subscribe(topic)

    def handle(message: ReceivedMessage) -> None:
        seen.append((message.topic, message.body, message.reconsume_times))
        if message.body == b"3" and message.reconsume_times == 0:
            raise ValueError("again")
        if message.body == b"5":
            message.reject("no such order")

    with consumer:
        assert {queue.topic for queue in consumer.assignment} <= {topic, f"%RETRY%{group}"}
        # One of them again.
        handle_until(
            consumer,
            handle,
            lambda: (topic, b"3", 1) in seen and len({body for _, body, _ in seen}) == 8,
        )
        with blocking.Admin(cluster.name_server, **OF_SHOP) as admin:
            assert {one.client_id for one in admin.groups.members(group).connections} == {
                consumer.client_id
            }
    assert {name for name, _, _ in seen} == {topic}
    assert {body for _, body, _ in seen} == {b"%d" % number for number in range(8)}
    assert (topic, b"3", 1) in seen
    (dead,) = cluster.messages(f"%DLQ%shop%{group}")
    assert dead.properties["DLQ_REASON"] == "no such order"
    assert dead.properties["RETRY_TOPIC"] == f"shop%{topic}"
    assert cluster.lag(f"shop%{group}") == 0
    with pytest.raises(GroupNotExist), blocking.Admin(cluster.name_server) as admin:
        admin.groups.config(group)
    # The dead letter is there under its short name, too.
    reader = blocking.PullConsumer(
        cluster.name_server, f"{group}-dead", from_where="earliest", **OF_SHOP
    )
    with reader.subscribe(f"%DLQ%{group}"):
        messages: list[ReceivedMessage] = []
        until(lambda: messages.extend(reader.poll()) or messages, "the dead letter is read")
    assert [message.body for message in messages] == [b"5"]


@pytest.mark.parametrize("how", ["by_config", "own"])
def test_queues_are_divided_by_the_names_that_the_user_knows(cluster: Cluster, how: str) -> None:
    """Another division is of members in Java, whose results depend on the whole names."""
    topic, seen = f"divided-{how}", set[str]()
    with blocking.Producer(cluster.name_server, **OF_SHOP) as producer:
        producer.send(Message(topic, b"first"))
        every = producer.queues(topic)
        listed = [queue for queue in every if queue.queue_id % 2]
        for queue in every:
            producer.send(Message(topic, b"odd" if queue in listed else b"even"), queue=queue)

    def own(queues: list[MessageQueue], ids: list[str], own_id: str) -> list[MessageQueue]:
        seen.update(queue.topic for queue in queues)
        return [queue for queue in queues if queue in listed or "%RETRY%" in queue.topic]

    consumer = blocking.Consumer(
        cluster.name_server,
        f"g-{how}",
        from_where="earliest",
        allocation=allocation.by_config(*listed) if how == "by_config" else own,
        **OF_SHOP,
    )
    handled: list[bytes] = []
    with consumer.subscribe(topic):
        handle_until(
            consumer,
            lambda message: handled.append(message.body),
            lambda: handled.count(b"odd") == len(listed),
        )
    assert handled.count(b"odd") == len(listed) and b"even" not in handled
    assert how == "by_config" or seen == {topic, f"%RETRY%g-{how}"}


def test_two_namespaces_and_none_are_apart(cluster: Cluster) -> None:
    spaces = {space: Network(namespace=space) for space in ("red", "blue", None)}
    for space, network in spaces.items():
        given: dict[str, Any] = {"network": network, "timeout_s": TIMEOUT_S}
        with blocking.Producer(cluster.name_server, **given) as producer:
            producer.send(Message("apart", str(space).encode()))
    for space, network in spaces.items():
        consumer = blocking.Consumer(
            cluster.name_server, "everyone", from_where="earliest", network=network
        )
        with consumer.subscribe("apart"):
            found = consumer.receive(LIMIT_S)
            assert found is not None and found.body == str(space).encode()
            assert consumer.receive(1) is None


def test_transactions_and_their_checks(cluster: Cluster) -> None:
    asked: list[str] = []

    def check(message: ReceivedMessage) -> TransactionStatus:
        asked.append(message.topic)
        return TransactionStatus.COMMIT

    producer = blocking.Producer(
        cluster.name_server, group="bookers", check_transaction=check, **OF_SHOP
    )
    with producer:
        with blocking.Transaction(producer, Message("booked", b"committed")):
            pass
        with pytest.raises(KeyError), blocking.Transaction(producer, Message("booked", b"back")):
            raise KeyError
        with (
            pytest.raises(KeyboardInterrupt),
            blocking.Transaction(producer, Message("booked", b"asked")),
        ):
            raise KeyboardInterrupt
        cluster.clock.advance(70)
        until(lambda: len(bodies(cluster, "shop%booked")) == 2, "the checked one is committed")
    assert bodies(cluster, "shop%booked") == {b"committed", b"asked"}
    assert set(asked) == {"booked"}


def test_questions_are_answered(cluster: Cluster) -> None:
    producer = blocking.Producer(cluster.name_server, **OF_SHOP)
    consumer = blocking.Consumer(
        cluster.name_server, "answerers", from_where="earliest", **OF_SHOP
    ).subscribe("asked")
    with producer, consumer:
        answering = producer

        def handle(message: ReceivedMessage) -> None:
            answering.reply(message, message.body.upper())

        thread = threading.Thread(target=consumer.run, args=(handle,))
        thread.start()
        try:
            assert producer.request(Message("asked", b"word"), deadline_s=LIMIT_S).body == b"WORD"
        finally:
            consumer.close()
            thread.join()


def test_broadcasting_keeps_its_offsets_where_java_does(cluster: Cluster, tmp_path: Path) -> None:
    with blocking.Producer(cluster.name_server, **OF_SHOP) as producer:
        producer.send(Message("told", b"1"))
    consumer = blocking.Consumer(
        cluster.name_server,
        "listeners",
        from_where="earliest",
        message_model="BROADCASTING",
        local_offsets_dir=tmp_path,
        **OF_SHOP,
    ).subscribe("told")
    with consumer:
        assert next(iter(consumer.messages(timeout_s=LIMIT_S))).body == b"1"
    (path,) = tmp_path.rglob("offsets.json")
    assert path.parent.name == "shop%listeners"
    assert '"topic":"shop%told"' in path.read_text().replace(" ", "")


def test_pull_and_pop(cluster: Cluster) -> None:
    with blocking.Producer(cluster.name_server, **OF_SHOP) as producer:
        for number in range(4):
            producer.send(Message("pulled", b"%d" % number))
    puller = blocking.PullConsumer(cluster.name_server, "pullers", **OF_SHOP).assign([])
    with puller:
        queues = puller.queues("pulled")
        assert {queue.topic for queue in queues} == {"pulled"}
        puller.assign(queues)
        for queue in queues:
            puller.seek(queue, "first")
        found: list[ReceivedMessage] = []
        until(lambda: found.extend(puller.poll()) or len(found) == 4, "all are pulled")
        assert {message.topic for message in found} == {"pulled"}
        puller.commit()
        committed = puller.committed(queues)
        assert sum(committed[queue] or 0 for queue in queues) == 4
    assert cluster.lag("shop%pullers") == 0
    popper = blocking.SimpleConsumer(
        cluster.name_server, "poppers", from_where="earliest", **OF_SHOP
    ).subscribe("pulled")
    with popper:
        popped: list[bytes] = []

        def pop() -> int:
            for message in popper.receive(8, 600, timeout_s=0.5):
                assert message.topic == "pulled"
                if message.body != b"0" or b"0" in popped:
                    popper.ack(message)
                popped.append(message.body)
            return len(popped)

        until(lambda: pop() == 4, "all are popped")
        assert set(popped) == {b"0", b"1", b"2", b"3"}
        cluster.clock.advance(601)
        until(lambda: pop() == 5, "what is not acknowledged comes again")
    assert popped[4] == b"0"


def test_admin_sees_the_namespace(cluster: Cluster) -> None:
    with (
        blocking.Admin(cluster.name_server, **OF_SHOP) as admin,
        blocking.Admin(cluster.name_server, timeout_s=TIMEOUT_S) as whole,
        blocking.Producer(cluster.name_server, **OF_SHOP) as producer,
    ):
        admin.topics.create("made", queue_count=2)
        assert "made" in admin.topics.names()
        assert "shop%made" in whole.topics.names()
        assert {queue.topic for queue in admin.topics.status("made")} == {"made"}
        assert {one.topic for one in admin.topics.config("made").values()} == {"made"}
        admin.groups.create("makers")
        assert "makers" in admin.groups.names()
        assert "shop%makers" in whole.groups.names()
        assert {one.group for one in admin.groups.config("makers").values()} == {"makers"}
        receipt = producer.send(Message("made", b"x", keys="key-1"))
        (found,) = admin.messages.by_key("made", "key-1")
        assert (found.topic, found.message_id) == ("made", receipt.message_id)
        assert admin.messages.by_unique_id("made", receipt.message_id).topic == "made"
        assert admin.messages.by_offset(receipt.queue, receipt.queue_offset).topic == "made"
        changes = admin.offsets.reset("makers", "made", "earliest")
        assert {change.queue.topic for change in changes} == {"made"}
        assert {one.queue.topic for one in admin.offsets.lag("makers")} == {"made"}
        for topic in ("%RETRY%makers", "%DLQ%makers"):
            admin.topics.create(topic, queue_count=1)
            assert topic.replace("makers", "shop%makers") in whole.topics.names(with_system=True)
        admin.groups.delete("makers", with_dead_letters=True)
        assert not [name for name in whole.topics.names(with_system=True) if "makers" in name]
        admin.topics.delete("made")
        assert "shop%made" not in whole.topics.names()


@pytest.mark.parametrize("wrong", ["", "a%b", "a b", "x" * 61, 7])
def test_a_wrong_namespace_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match="namespace="):
        Network(namespace=wrong)  # type: ignore[arg-type]


def test_who_has_no_namespaces_says_so() -> None:
    with pytest.raises(ConfigurationError, match="shop%orders"):
        BlockingClient("127.0.0.1:1", network=SHOP)
