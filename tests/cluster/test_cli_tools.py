"""Commands for topics, groups and messages beyond those of ``test_cli_requests``."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.cli_processes import DEADLINE_S, array, pymq, refusal, rows, running

from pymq import blocking
from pymq.protocol.bodies import GroupConfig
from pymq.protocol.message import Message
from pymq.testing import Cluster, wait_until


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running_cluster:
        yield running_cluster


@pytest.fixture
def where(cluster: Cluster) -> tuple[str, ...]:
    return ("-n", cluster.name_server, "-o", "json")


def test_topic_settings_and_route(cluster: Cluster, where: tuple[str, ...]) -> None:
    created = array(pymq(*where, "topic", "create", "set", "--queues", "2", "--perm", "4"))
    assert created == [{"topic": "set", "queues": 2}]
    (row,) = array(pymq("topic", "update", "set", "--perm", "6", *where))
    assert (row["perm"], row["readQueues"], row["order"]) == (6, 2, False)
    assert array(pymq("topic", "config", "set", *where)) == [row]
    (route,) = array(pymq("topicRoute", "-t", "set", *where))
    assert route == {
        "broker": cluster.broker_name,
        "id": 0,
        "address": cluster.broker_address,
        "readQueues": 2,
        "writeQueues": 2,
    }
    missing = refusal(pymq("topic", "route", "none", *where))
    assert missing.status == 1 and "pymq topic create none" in missing.line


def test_mqadmin_changes_what_it_names_and_no_more() -> None:
    with Cluster(broker={"cluster": "A", "name": "a1"}) as first:
        second = {"cluster": "B", "name": "b1", "name_servers": (first.name_server,)}
        with Cluster(broker=second) as other, blocking.Admin(first.name_server) as admin:
            admin.brokers.wait_registered(2, deadline_s=DEADLINE_S)
            at = ("-n", first.name_server, "-o", "json")
            array(pymq(*at, "updateTopic", "-t", "two", "-r", "2", "-w", "2"))
            changed = array(pymq(*at, "updateTopicPerm", "-t", "two", "-p", "4", "-c", "A"))
            assert {one["broker"]: one["perm"] for one in changed} == {"a1": 4}
            every = array(pymq("topic", "config", "two", *at))
            assert {one["broker"]: one["perm"] for one in every} == {"a1": 4, "b1": 6}
            none = refusal(pymq(*at, "updateTopicPerm", "-t", "two", "-p", "4", "-c", "C"))
            assert none.status == 2 and "'C' is not known" in none.line
            (sent,) = rows(pymq(*at, "sendMessage", "-t", "two", "-p", "x", "-b", "b1", "-i", "1"))
            assert (sent["broker"], sent["queue"]) == ("b1", 1)
            admin.groups.create(GroupConfig(group="g1"))
            admin.offsets.reset("g1", "two", "earliest")
            look = ("consumeMessage", "-t", "two", "-g", "g1")
            for start in ((), ("-s", "1700000000000"), ("-b", "b1", "-i", "1")):
                (seen,) = rows(pymq(*at, *look, *start))
                assert seen["body"] == "x"
            assert sum(one.lag for one in admin.offsets.lag("g1", "two")) == 1
            one_queue = ("-b", other.broker_address, "-q", "1", "-s", "now")
            (moved,) = array(pymq(*at, "resetOffsetByTime", "-g", "g1", "-t", "two", *one_queue))
            assert (moved["broker"], moved["queue"], moved["moved"]) == ("b1", 1, 1)


def test_groups_are_created_reset_and_deleted(cluster: Cluster, where: tuple[str, ...]) -> None:
    array(pymq("topic", "create", "work", "--queues", "1", *where))
    assert array(pymq("group", "create", "team", *where))[0]["retries"] == 16
    rows(pymq("send", "work", "x", "--count", "5", *where))
    reset = ("group", "reset", "team", "--topic", "work", *where)
    (dry,) = array(pymq(*reset, "--to", "latest", "--dry-run"))
    assert (dry["before"], dry["after"], dry["moved"], dry["done"]) == (None, 5, 5, False)
    assert refusal(pymq("group", "lag", "team", *where)).status == 1
    nothing = refusal(pymq("group", "lag", "team", "--topic", "work", *where))
    assert nothing.status == 1 and "committed no offset in topic 'work'" in nothing.line
    typo = ("group", "reset", "taem", "--topic", "work", "--to", "latest", "--dry-run")
    assert refusal(pymq(*typo, *where)).status == 1
    (done,) = array(pymq(*reset, "--to", "latest"))
    assert (done["after"], done["done"]) == (5, True)
    assert array(pymq("group", "lag", "team", *where))[0]["lag"] == 0
    (done,) = array(pymq(*reset, "--to", "3", "--queue", "0"))
    assert (done["before"], done["after"], done["moved"]) == (5, 3, -2)
    assert array(pymq(*reset, "--to", "1h"))[0]["after"] == 0
    wrong = refusal(pymq(*reset, "--to", "soon"))
    assert wrong.status == 2 and "--to 'soon'" in wrong.line
    table = pymq(*reset[:-2], "--to", "earliest", "--dry-run")
    assert table.stdout.splitlines()[0].split()[:3] == ["BROKER", "QUEUE", "BEFORE"]

    nobody = refusal(pymq("group", "members", "team", *where))
    assert nobody.status == 1 and "has no members" in nobody.line
    with blocking.Consumer(cluster.name_server, "team").subscribe("work", "A") as consumer:
        wait_until(lambda: consumer.assignment, timeout_s=DEADLINE_S)  # brokers know it
        (member,) = array(pymq("group", "members", "team", *where))
        assert member["member"] == consumer.client_id
        assert member["subscriptions"]["work"] == "A"
    (gone,) = array(pymq("group", "delete", "team", *where))
    assert gone["deleted"] and gone["deadLettersKept"] is None
    assert refusal(pymq("group", "delete", "team", *where)).status == 1


def test_a_group_is_deleted_with_its_topics(cluster: Cluster, where: tuple[str, ...]) -> None:
    with blocking.Admin(cluster.name_server, timeout_s=DEADLINE_S) as admin:

        def create() -> None:
            admin.groups.create("gone")
            for topic in ("%RETRY%gone", "%DLQ%gone"):
                admin.topics.create(topic, queue_count=1)

        def left() -> list[str]:
            return [name for name in admin.topics.names(with_system=True) if "gone" in name]

        create()
        (gone,) = array(pymq("group", "delete", "gone", *where))
        assert gone["deadLettersKept"] == "%DLQ%gone" and left() == ["%DLQ%gone"]
        create()
        told = pymq("group", "delete", "gone", "-n", cluster.name_server).stdout
        kept = "its dead letters stay in %DLQ%gone; `pymq topic delete %DLQ%gone` deletes them"
        assert told.splitlines()[-1] == kept
        create()
        (gone,) = array(pymq("group", "delete", "gone", "--with-dead-letters", *where))
        assert gone["deadLettersKept"] is None and not left()
        create()
        array(pymq("deleteSubGroup", "-g", "gone", "-c", "DefaultCluster", *where))
        assert not left()


def test_the_last_messages_and_those_that_follow(cluster: Cluster, where: tuple[str, ...]) -> None:
    array(pymq("topic", "create", "log", "--queues", "2", *where))
    rows(pymq("send", "log", "--queue", "1", *where, given=b"".join(b"%d\n" % n for n in range(9))))
    last = rows(pymq("tail", "log", "-n", "3", *where))
    assert [row["body"] for row in last] == ["6", "7", "8"]
    text = pymq("tail", "log", "-n", "2", "--format", r"{offset}={body}\n", *where)
    assert text.stdout == "7=7\n8=8\n"
    assert pymq("tail", "log", "--queue", "0", *where).stdout == ""
    at = rows(pymq("message", "at", "log", "4", "--queue", "1", *where))
    assert at[0]["body"] == "4"
    several = refusal(pymq("message", "at", "log", "4", *where))
    assert several.status == 2 and "has 2 queues: give --queue" in several.line
    following = running("tail", "log", "-n", "1", "-f", "--body-only", *where[:2])
    with following as process, blocking.Producer(cluster.name_server) as producer:
        assert process.line() == "8"
        producer.send(Message("log", b"new"))
        assert process.line() == "new"
    only = rows(pymq("consume", "log", "--no-follow", "--queue", "1", "--count", "2", *where))
    assert [row["body"] for row in only] == ["0", "1"]


def test_what_was_consumed_is_sent_again(where: tuple[str, ...], tmp_path: Path) -> None:
    sent = ("--tags", "A", "--keys", "k1", "--keys", "k2", "--property", "own=1")
    rows(pymq("send", "first", "one", *sent, *where))
    rows(pymq("send", "first", "-", *where, given=b"two\n"))
    raw = tmp_path / "raw"
    raw.write_bytes(b"\xff\x00")
    rows(pymq("send", "first", "--file", raw, *where))
    printed = pymq("consume", "first", "--no-follow", *where).stdout.encode()
    assert len(rows(pymq("send", "second", "--from-json", "-", *where, given=printed))) == 3
    saved = tmp_path / "saved.json"
    saved.write_bytes(printed)
    rows(pymq("send", "--from-json", saved, *where))  # to where they were
    assert len(rows(pymq("consume", "first", "--no-follow", *where))) == 6
    (copied,) = array(pymq("copy", "second", "third", *where))
    assert copied == {"source": "second", "target": "third", "messages": 3}

    def told(topic: str) -> list[object]:
        found = rows(pymq("consume", topic, "--no-follow", *where))
        names = ("body", "bodyBase64", "tags", "keys", "flag")
        own = [{**{n: row.get(n) for n in names}, "own": row["properties"].get("own")}
               for row in found]  # fmt: skip
        return sorted(own, key=json.dumps)

    assert told("third") == told("second") == told("first")[::2]
    assert told("third")[0] == {
        "body": "one", "bodyBase64": None, "tags": "A", "keys": ["k1", "k2"], "flag": 0, "own": "1",
    }  # fmt: skip
    same = refusal(pymq("copy", "third", "third", *where))
    assert same.status == 2 and "it would never end" in same.line
    bad = pymq("send", "second", "--from-json", "-", *where, given=printed[:9])
    assert bad.returncode == 2 and "line 1 of the JSON" in bad.stderr


def test_a_namespace(cluster: Cluster, where: tuple[str, ...]) -> None:
    """Commands show short names, brokers have whole ones, and others see nothing of it."""
    shop = ("--namespace", "shop", *where)
    array(pymq("topic", "create", "seats", "--queues", "2", *shop))
    assert {"topic": "seats"} in array(pymq("topic", "list", *shop))
    sent = rows(pymq("send", "seats", "one", "--keys", "k1", *shop))
    sent += rows(pymq("send", "seats", *shop, given=b"two\nthree\n"))
    assert {row["topic"] for row in sent} == {"seats"}
    rows(pymq("send", "seats", "four", "--queue", "1", *shop))

    def bodies(*command: str) -> list[str]:
        found = rows(pymq(*command, *shop))
        assert {row["topic"] for row in found} <= {"seats", "rows"}
        return sorted(row["body"] for row in found)

    every = ["four", "one", "three", "two"]
    read = ("consume", "seats", "--from", "earliest")
    assert bodies(*read, "--no-follow") == every
    assert bodies(*read, "--no-follow", "--group", "drain") == every
    assert bodies(*read, "--no-follow", "--group", "drain") == []
    assert bodies(*read, "--count", "4", "--group", "join") == every
    assert bodies(*read, "--count", "4") == every
    assert bodies("tail", "seats", "-n", "4") == every
    names = {row["group"] for row in array(pymq("group", "list", *shop))}
    assert {"join", "drain"} <= names
    lags = array(pymq("group", "lag", "drain", *shop))
    assert sum(row["lag"] for row in lags) == 0 and {row["topic"] for row in lags} == {"seats"}
    assert bodies("message", "find", "seats", "k1") == ["one"]
    printed = pymq(*read, "--no-follow", *shop).stdout.encode()
    again = rows(pymq("send", "--from-json", "-", *shop, given=printed))
    assert len(again) == 4 and {row["topic"] for row in again} == {"seats"}
    (copied,) = array(pymq("copy", "seats", "rows", *shop))
    assert copied == {"source": "seats", "target": "rows", "messages": 8}
    checked = array(pymq("doctor", "--topic", "seats", *shop))
    assert any("'seats' has 2 queues" in row["text"] for row in checked)
    ours = {topic for topic in cluster.topics() if topic.startswith("shop%")}
    assert ours == {"shop%seats", "shop%rows"} and not {"seats", "rows"} & {*cluster.topics()}
    assert len(cluster.messages("shop%rows")) == 8
    unknown = refusal(pymq("consume", "seats", "--no-follow", "--namespace", "other", *where))
    assert "other%seats" in unknown.line
    wrong = refusal(pymq("topic", "list", "--namespace", "a b", *where))
    assert wrong.status == 2 and "namespace" in wrong.line


def test_members_reach_brokers_where_they_are_mapped(
    cluster: Cluster, where: tuple[str, ...]
) -> None:
    rows(pymq("send", "mapped", "one", *where))
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.settimeout(DEADLINE_S)
        address = f"127.0.0.1:{elsewhere.getsockname()[1]}"
        told = ("--group", "mapped", "--map", f"{cluster.broker_address}={address}")
        with running("consume", "mapped", *told, *where):
            elsewhere.accept()[0].close()


def test_profiles_name_clusters(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[profiles.here]\ntimeout_s = 30\nname_server = "{cluster.name_server}"\n')
    found = pymq("--profile", "here", "topic", "list", PYMQ_CONFIG=str(file))
    assert found.returncode == 0 and found.stdout.startswith("TOPIC")
    file.write_text(f'{file.read_text()}namespace = "profiled"\n')
    pymq("send", "T", "x", "--profile", "here", PYMQ_CONFIG=str(file))
    assert [one.body for one in cluster.messages("profiled%T")] == [b"x"]
    wrong = refusal(pymq("topic", "list", "--profile", "there", PYMQ_CONFIG=str(file)))
    assert wrong.status == 2 and "has no profile 'there', only: here" in wrong.line


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_our_words(shell: str) -> None:
    script = pymq("completion", shell)
    assert script.returncode == 0 and "_PYMQ_COMPLETE" in script.stdout


def test_what_completes_a_word() -> None:
    def completed(words: str) -> list[str]:
        asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        return pymq(_PYMQ_COMPLETE="complete_bash", **asked).stdout.split()

    assert completed("pymq to") == ["topic"]
    assert {"reset", "members", "lag"} <= set(completed("pymq group "))
    assert completed("pymq group reset --dr") == ["--dry-run"]


def test_up_for_containers(tmp_path: Path) -> None:
    ports = ("--namesrv-port", "0", "--broker-port", "0", "-o", "json")
    addresses = ("--bind", "0.0.0.0", "--advertise", "127.0.0.2")
    with running("up", "--store", tmp_path / "s", *ports, *addresses) as process:
        told = json.loads(process.line())
        assert told["broker"].startswith("127.0.0.2:")
        port = told["nameServer"].removeprefix("127.0.0.2:")
        where = ("-n", f"127.0.0.1:{port}", "-o", "json")
        array(pymq("topic", "create", "outside", *where))
        (route, *_) = array(pymq("topic", "route", "outside", *where))
        assert route["address"] == told["broker"]
        assert rows(pymq("send", "outside", "x", *where))[0]["status"] == "SEND_OK"
