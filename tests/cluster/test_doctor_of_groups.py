"""What ``pymq doctor`` says of a group that fails, or stands; and that its advice can be followed.

In this process: what matters is what is found, not how it is printed.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cluster.played import closed_address

from pymq import Network, blocking
from pymq.cli import group_diagnosis
from pymq.cli.findings import Finding, State
from pymq.cli.group_diagnosis import GroupDiagnosis
from pymq.cli.main import main
from pymq.client import operations
from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import ConnectionFailed
from pymq.protocol.bodies import GroupConfig, MessageQueue
from pymq.protocol.message import Message
from pymq.testing import Cluster, wait_until

#: For what comes at once, were the machine not busy.
LIMIT_S = 60.0
WATCH_S = 0.2

Follow = Callable[[str], str]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.fixture
def follow(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Follow:
    """Return what runs a command of some advice, and returns its output."""
    monkeypatch.setattr("pymq.cli.logs.set_up", lambda level: None)

    def run(command: str) -> str:
        name, *words = shlex.split(command)
        assert name == "pymq"
        status = main([*words, "-n", cluster.name_server, "--timeout", f"{LIMIT_S:g}"])
        told = capsys.readouterr()
        assert status == 0, told
        return told.out

    return run


def diagnosis(cluster: Cluster, group: str, topic: str | None = "orders") -> list[Finding]:
    with blocking.Admin(cluster.name_server, timeout_s=LIMIT_S) as admin:
        return list(GroupDiagnosis(admin, group, topic, WATCH_S).run())


def send(cluster: Cluster, *, queue_count: int = 1) -> None:
    """Have a message in each queue of the topic, and a group that has still to read them."""
    with (
        blocking.Admin(cluster.name_server, timeout_s=LIMIT_S) as admin,
        blocking.Producer(cluster.name_server, timeout_s=LIMIT_S) as producer,
    ):
        admin.topics.create("orders", queue_count=queue_count)
        for number in range(queue_count):
            queue = MessageQueue("orders", cluster.broker_name, number)
            producer.send(Message("orders", b"%d" % number), queue=queue)
        admin.groups.create("billing")
        admin.offsets.reset("billing", "orders", "earliest")


def commands(advice: str) -> list[str]:
    """Return the commands in some advice."""
    return re.findall(r"pymq [a-z][^,;()]*", advice)


def test_messages_that_were_given_up(
    cluster: Cluster, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(cluster, queue_count=2)
    with blocking.Consumer(cluster.name_server, "billing").subscribe("orders") as consumer:
        messages = consumer.messages()
        for _ in range(2):
            next(messages).reject("no such customer")
        wait_until(lambda: len(cluster.dead_letters("billing")) == 2, timeout_s=LIMIT_S)
        wait_until(lambda: cluster.lag("billing", "orders") == 0, timeout_s=LIMIT_S)
        well, dead, lag = diagnosis(cluster, "billing")
        assert well.state is State.OK
        assert (dead.check, dead.state) == ("group", State.WRONG)
        assert re.fullmatch(
            r"'billing' gave up messages: 2, the newest stored at \S+ \S+, in %DLQ%billing, of "
            r"topic orders: no such customer",
            dead.text,
        )
        assert (lag.check, lag.state) == ("lag", State.OK)
        assert "that wait for another try, or are popped, are not counted" in lag.text
        # What failed long ago is told, and fails no script for ever.
        monkeypatch.setattr(group_diagnosis, "RECENT_S", -LIMIT_S)
        assert [one.state for one in diagnosis(cluster, "billing")] == ["ok", "note", "ok"]
    tail, copy = commands(dead.advice)
    assert "no such customer" in follow(f"{tail} -o json")
    assert copy == "pymq copy %DLQ%billing orders"
    follow(copy)
    assert len(cluster.messages("orders")) == 4


def test_messages_that_are_tried_again(cluster: Cluster, follow: Follow) -> None:
    send(cluster)
    with blocking.Consumer(cluster.name_server, "billing").subscribe("orders") as consumer:
        messages = consumer.messages()
        next(messages).retry(after_s=1)
        wait_until(lambda: cluster.lag("billing", "orders") == 0, timeout_s=LIMIT_S)
        cluster.clock.advance(2)
        next(messages)  # and that hangs
        _, failed, lag = diagnosis(cluster, "billing")
    assert failed.state is State.NOTE
    assert "'billing' failed at messages, and got them again: 1, the newest" in failed.text
    (tail,) = commands(failed.advice)
    assert tail == "pymq tail %RETRY%billing" and follow(f"{tail} -o json")
    assert lag.text.startswith("%RETRY%billing broker-a:0 stands at offset 0, 1 messages behind")


def test_dead_letters_of_a_namespace(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pymq.cli.logs.set_up", lambda level: None)
    network = Network(namespace="shop")
    with blocking.Producer(cluster.name_server, network=network) as producer:
        producer.send(Message("orders", b"x"))
    with blocking.Consumer(
        cluster.name_server, "billing", from_where="earliest", network=network
    ).subscribe("orders") as consumer:
        next(consumer.messages()).reject()
        wait_until(lambda: cluster.dead_letters("shop%billing"), timeout_s=LIMIT_S)
        options = ("--namespace", "shop", "--group", "billing", "--watch", f"{WATCH_S}")
        assert main(["doctor", "-n", cluster.name_server, *options, "-o", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    (dead,) = [one for one in found if one["state"] == "WRONG"]
    assert dead["text"].endswith(", in %DLQ%billing, of topic orders")
    assert commands(dead["advice"])[1] == "pymq copy %DLQ%billing orders"


def test_nothing_failed(cluster: Cluster) -> None:
    send(cluster)
    with blocking.Consumer(cluster.name_server, "billing").subscribe("orders") as consumer:
        next(consumer.messages()).ack()
        wait_until(lambda: cluster.lag("billing", "orders") == 0, timeout_s=LIMIT_S)
        found = diagnosis(cluster, "billing")
    assert [(one.check, one.state) for one in found] == [("group", "ok"), ("lag", "ok")]


def test_each_queue_that_stands_has_its_own_advice(cluster: Cluster, follow: Follow) -> None:
    send(cluster, queue_count=2)
    with blocking.Consumer(cluster.name_server, "billing").subscribe("orders") as consumer:
        next(consumer.messages())  # and that hangs
        _, *stand = diagnosis(cluster, "billing")
    assert len(stand) == 2
    for number, finding in enumerate(stand):
        assert f"orders broker-a:{number} stands at offset 0" in finding.text
        assert "a handler hangs or fails there" in finding.advice
        at, reset = commands(finding.advice)
        assert f'"body": "{number}"' in follow(f"{at} -o json")
        (row,) = json.loads(follow(f"{reset} -o json"))
        assert (row["queue"], row["after"]) == (number, 1)


def test_members_that_pull_have_no_handler(cluster: Cluster) -> None:
    send(cluster)
    with blocking.PullConsumer(cluster.name_server, "billing").subscribe("orders") as consumer:
        consumer.poll(max_count=1, timeout_s=LIMIT_S)
        *_, lag = diagnosis(cluster, "billing")
    assert lag.state is State.WRONG
    assert lag.advice.startswith("its members pull, and poll nothing there, or do not commit")


def test_members_that_receive_have_no_handler(cluster: Cluster) -> None:
    send(cluster)
    with blocking.SimpleConsumer(cluster.name_server, "billing").subscribe("orders") as consumer:
        (message,) = consumer.receive(max_count=1)
        consumer.ack(message)
        wait_until(lambda: cluster.lag("billing", "orders") == 0, timeout_s=LIMIT_S)
        with blocking.Producer(cluster.name_server, timeout_s=LIMIT_S) as producer:
            producer.send(Message("orders", b"not received"))
        *_, lag = diagnosis(cluster, "billing")
    assert lag.state is State.WRONG
    assert lag.advice.startswith("its members receive, and take nothing there, or do not ack")


def test_a_group_that_may_not_consume(cluster: Cluster, follow: Follow) -> None:
    off = GroupConfig(
        group="billing", consume_enable=False, retry_max_times=3, consume_message_orderly=True
    )
    with blocking.Admin(cluster.name_server, timeout_s=LIMIT_S) as admin:
        admin.groups.create(off)
        finding = diagnosis(cluster, "billing", None)[0]
        assert finding.text == "'billing' may not consume on broker-a"
        (command,) = commands(finding.advice)
        assert command.endswith(" --cluster DefaultCluster")
        follow(command)
        (on,) = admin.groups.config("billing").values()
    assert on.consume_enable and on.consume_message_orderly and on.retry_max_times == 3


def updated_as_mqadmin(command: str) -> tuple[str, GroupConfig]:
    """Return where ``mqadmin updateSubGroup`` sends what; Java: UpdateSubGroupSubCommand."""
    name, verb, *words = shlex.split(command)
    assert (name, verb) == ("mqadmin", "updateSubGroup")
    given = dict(zip(words[::2], words[1::2], strict=True))
    address = given.pop("-b")
    # Its own defaults: these two are off.
    config = GroupConfig(
        group=given.pop("-g"), consume_from_min_enable=False, consume_broadcast_enable=False
    )
    fields = {
        "-s": "consume_enable",
        "-m": "consume_from_min_enable",
        "-d": "consume_broadcast_enable",
        "-o": "consume_message_orderly",
        "-q": "retry_queue_count",
        "-r": "retry_max_times",
        "-i": "broker_id",
        "-w": "which_broker_when_consume_slowly",
        "-a": "notify_consumer_ids_changed_enable",
    }
    for option, value in given.items():
        if option == "-p":
            config.retry_policy = json.loads(value)
        elif option == "--attributes":
            config.attributes = dict(pair[1:].split("=") for pair in value.split(","))
        else:
            number = {"true": True, "false": False}.get(value)
            setattr(config, fields[option], int(value) if number is None else number)
    return address, config


def own_settings(cluster: Cluster, configs: dict[str, GroupConfig]) -> dict[str, str]:
    """Give brokers settings of a group of their own; return their addresses."""
    with BulkClient((cluster.name_server,)) as client:
        info = client.cluster_info()
        addresses = {name: one.addresses[0] for name, one in info.brokers.items()}
        for name, config in configs.items():
            client.ask(addresses[name], operations.update_group(config))
    return addresses


def test_brokers_whose_settings_of_a_group_differ_keep_them() -> None:
    """Only that it may not consume is changed, at the broker where it may not."""
    off = GroupConfig(
        group="billing",
        consume_enable=False,
        consume_broadcast_enable=False,
        retry_max_times=-1,
        retry_queue_count=2,
        which_broker_when_consume_slowly=2,
        notify_consumer_ids_changed_enable=False,
        retry_policy={"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 5000]}},
    )
    on = GroupConfig(group="billing", retry_max_times=9, consume_message_orderly=True)
    with Cluster(brokers=2) as cluster:
        addresses = own_settings(cluster, {"broker-a": off, "broker-b": on})
        finding = diagnosis(cluster, "billing", None)[0]
        assert finding.text == "'billing' may not consume on broker-a"
        address, config = updated_as_mqadmin(finding.advice)
        assert address == addresses["broker-a"]
        own_settings(cluster, {"broker-a": config})
        with blocking.Admin(cluster.name_server, timeout_s=LIMIT_S) as admin:
            found = admin.groups.config("billing")
        assert found == {"broker-a": replace(off, consume_enable=True), "broker-b": on}


def test_mqadmin_is_told_the_whole_name_of_a_group_in_a_namespace(cluster: Cluster) -> None:
    own_settings(
        cluster,
        {"broker-a": GroupConfig(group="shop%b", consume_enable=False, retry_max_times=-1)},
    )
    network = Network(namespace="shop")
    with blocking.Admin(cluster.name_server, timeout_s=LIMIT_S, network=network) as admin:
        finding = next(GroupDiagnosis(admin, "b", None, WATCH_S, network).run())
    assert finding.text == "'b' may not consume on broker-a"
    assert updated_as_mqadmin(finding.advice)[1].group == "shop%b"


def test_settings_that_a_command_cannot_keep_are_named(cluster: Cluster) -> None:
    off = GroupConfig(group="billing", consume_enable=False, consume_timeout_minute=3)
    own_settings(cluster, {"broker-a": off})
    finding = diagnosis(cluster, "billing", None)[0]
    assert finding.advice.startswith("mqadmin updateSubGroup -b ")
    assert finding.advice.endswith(" (it resets consumeTimeoutMinute)")


def test_a_group_that_may_not_consume_on_a_broker_of_an_unknown_cluster(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command for all clusters would change other brokers, too."""

    def fail(_: blocking.Admin) -> None:
        raise ConnectionFailed("no name server")

    own_settings(cluster, {"broker-a": GroupConfig(group="billing", consume_enable=False)})
    monkeypatch.setattr(blocking.Admin, "cluster", fail)
    finding = diagnosis(cluster, "billing", None)[0]
    assert finding.text.startswith("'billing' may not consume on broker-a; where they are: no na")
    assert "pymq" not in finding.advice


def test_dead_letters_that_nobody_may_read(cluster: Cluster, follow: Follow) -> None:
    """Older releases of RocketMQ make their topic so: write only."""
    send(cluster)
    with blocking.Admin(cluster.name_server, timeout_s=LIMIT_S) as admin:
        admin.topics.create("%DLQ%billing", queue_count=1, perm=2)
    with blocking.Consumer(cluster.name_server, "billing").subscribe("orders") as consumer:
        next(consumer.messages()).reject("no such customer")
        wait_until(lambda: cluster.lag("billing", "orders") == 0, timeout_s=LIMIT_S)
        _, dead, _ = diagnosis(cluster, "billing")
    permit, tail, copy = commands(dead.advice)
    assert permit.startswith("pymq topic update %DLQ%billing --perm 6 ")
    follow(permit.removesuffix(" lets them be read"))
    assert "no such customer" in follow(f"{tail} -o json")
    follow(copy)
    assert len(cluster.messages("orders")) == 2


def test_a_broker_that_permits_too_little(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pymq.cli.logs.set_up", lambda level: None)
    with Cluster(broker={"permission": 4}) as cluster:
        with blocking.Admin(cluster.name_server, timeout_s=LIMIT_S) as admin:
            admin.topics.create("orders", queue_count=1)
        assert main(["doctor", "-n", cluster.name_server, "--topic", "orders", "-o", "json"]) == 1
        (wrong,) = [one for one in json.loads(capsys.readouterr().out) if one["state"] == "WRONG"]
        assert wrong["text"].startswith("broker broker-a permits only 4 (brokerPermission;")
        command = f"mqadmin updateBrokerConfig -b {cluster.broker_address} -k brokerPermission -v 6"
        assert wrong["advice"].startswith(f"{command} (")


@pytest.mark.parametrize("what", ["topic", "group"])
def test_a_name_that_is_illegal(
    what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pymq.cli.logs.set_up", lambda level: None)
    assert main(["doctor", "-n", closed_address(), f"--{what}", "a b"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"pymq doctor: {what} name 'a b' has ' ' at 1, expected letters")


def test_members_that_broadcast_keep_their_own_offsets(cluster: Cluster, tmp_path: Path) -> None:
    send(cluster)
    consumer = blocking.Consumer(
        cluster.name_server,
        "news",
        message_model="BROADCASTING",
        from_where="earliest",
        local_offsets_dir=tmp_path,
    )
    with (
        blocking.Admin(cluster.name_server, timeout_s=LIMIT_S) as admin,
        consumer.subscribe("orders"),
    ):
        next(consumer.messages())
        admin.offsets.reset("news", "orders", "earliest")
        assert admin.offsets.lag("news", "orders")
        lag = diagnosis(cluster, "news")[-1]
        assert (lag.check, lag.state) == ("lag", State.NOTE)
        assert "keeps its own offsets" in lag.text
