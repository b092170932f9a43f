"""Commands that ask a cluster: topics, messages, groups, brokers, and what goes wrong."""

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.cli_processes import DEADLINE_S, array, pymq, refusal, rows, running

from pymq.client import operations
from pymq.client.sockets.bulk_client import BulkClient
from pymq.protocol.sink_bodies import SinkBatch
from pymq.protocol.sink_decisions import PublishRequest, StagedRuns
from pymq.testing import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running_cluster:
        yield running_cluster


@pytest.fixture(scope="module")
def name_server(cluster: Cluster) -> str:
    return cluster.name_server


def test_topics(name_server: str) -> None:
    where = ("-n", name_server, "-o", "json")
    assert array(pymq("topic", "create", "made", "--queues", "3", *where)) == [
        {"topic": "made", "queues": 3}
    ]
    assert {"topic": "made"} in array(pymq("topic", "list", *where))
    assert {"topic": "TBW102"} not in array(pymq("topic", "list", *where))
    assert {"topic": "TBW102"} in array(pymq("topic", "list", "--system", *where))
    sent = rows(pymq("send", "made", "hi", "--queue", "2", *where))
    assert [(row["queue"], row["offset"], row["status"]) for row in sent] == [(2, 0, "SEND_OK")]
    found = array(pymq("topic", "status", "made", *where))
    assert [row["messages"] for row in found] == [0, 0, 1]
    table = pymq("topic", "status", "made", NAMESRV_ADDR=name_server)
    assert table.stdout.splitlines()[0].split()[:3] == ["BROKER", "QUEUE", "FIRST"]
    assert array(pymq("topic", "delete", "made", *where)) == [{"topic": "made", "deleted": True}]
    for verb in ("status", "delete"):
        found_nothing = refusal(pymq("topic", verb, "made", *where))
        assert found_nothing.status == 1 and "'made'" in found_nothing.line


def test_send_and_consume(name_server: str, tmp_path: Path) -> None:
    where = ("-n", name_server, "-o", "json")
    groups = array(pymq("group", "list", *where))
    arguments = ("--tags", "A", "--keys", "k1", "--keys", "k2", "--property", "a=b")
    rows(pymq("send", "mail", "one", *arguments, *where))
    lines = "".join(f"line {number}\n" for number in range(300)).encode() + b"\nlast"
    sent = rows(pymq("send", "mail", *where, given=lines))
    assert len(sent) == 301 and len({row["id"] for row in sent}) == 301
    raw = tmp_path / "raw"
    raw.write_bytes(b"\x00\xff\n")
    rows(pymq("send", "mail", "--file", raw, "--tags", "B", "--count", "2", *where))

    found = rows(pymq("consume", "mail", "--no-follow", *where))
    assert len(found) == 304
    assert {(row["queue"], row["offset"]) for row in sent} < {
        (row["queue"], row["offset"]) for row in found
    }
    assert [row["storeTimestamp"] for row in found] == sorted(
        row["storeTimestamp"] for row in found
    )
    (one,) = rows(pymq("consume", "mail", "--no-follow", "--tags", "A", *where))
    assert (one["body"], one["tags"], one["keys"]) == ("one", "A", ["k1", "k2"])
    assert one["properties"]["a"] == "b"
    binary = rows(pymq("consume", "mail", "--no-follow", "--tags", "B || C", *where))
    assert [row["bodyBase64"] for row in binary] == ["AP8K", "AP8K"]
    bodies = pymq("consume", "mail", "--no-follow", "--tags", "A", "--body-only", *where[:2])
    assert bodies.stdout == "one\n"
    some = rows(pymq("consume", "mail", "--no-follow", "--count", "7", *where))
    assert len(some) == 7
    latest = pymq("consume", "mail", "--no-follow", "--from", "latest", *where)
    assert (latest.returncode, latest.stdout) == (0, "")
    assert len(rows(pymq("consume", "mail", "--no-follow", "--from", "1h", *where))) == 304
    assert array(pymq("group", "list", *where)) == groups  # nobody's offsets were touched
    few = pymq("consume", "mail", "--no-follow", "--count", "1000", *where)
    assert few.returncode == 1 and "304 messages" in few.stderr


def test_tail_gets_what_comes(name_server: str) -> None:
    pymq("topic", "create", "news", "-n", name_server)
    pymq("send", "news", "old", "-n", name_server)
    with running("consume", "news", "-n", name_server, "--from", "earliest", "-o", "json") as tail:
        assert json.loads(tail.line())["body"] == "old"
        for number in range(3):
            pymq("send", "news", f"new {number}", "-n", name_server)
            assert json.loads(tail.line())["body"] == f"new {number}"
        status, err = tail.stop(signal.SIGINT)
        assert (status, err) == (130, "")


def test_group(name_server: str) -> None:
    where = ("-n", name_server, "-o", "json")
    rows(pymq("send", "work", *where, given=b"1\n2\n3\n4\n5\n"))
    drain = ("consume", "work", "--group", "crew", "--no-follow")
    assert [row["body"] for row in rows(pymq(*drain, "--count", "2", *where))] == ["1", "2"]
    lag = array(pymq("group", "lag", "crew", *where))
    assert sum(row["lag"] for row in lag) == 3
    with running("consume", "work", "--group", "crew", *where) as member:
        assert [json.loads(member.line())["body"] for _ in range(3)] == ["3", "4", "5"]
        assert {"group": "crew", "members": 1} in array(pymq("group", "list", *where))
        busy = refusal(pymq(*drain, *where))
        assert busy.status == 1 and "are connected (1)" in busy.line
        assert member.stop(signal.SIGINT)[0] == 130
    assert rows(pymq(*drain, *where)) == []
    text = pymq("group", "lag", "crew", "-n", name_server).stdout
    assert text.splitlines()[-1] == "total lag 0"
    nobody = refusal(pymq("group", "lag", "nobody", *where))
    assert nobody.status == 1 and "'nobody'" in nobody.line


def test_messages_are_found_and_shown(name_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Or a broker that is held up looks in what it has indexed by then.
    monkeypatch.setattr("pymq.broker.handlers.query.INDEX_WAIT_S", DEADLINE_S)
    where = ("-n", name_server, "-o", "json")
    for number in range(6):
        keys = ("--keys", "all", "--keys", f"k{number % 2}", "--tags", "T")
        rows(pymq("send", "ledger", f"entry {number}", *keys, *where))
    found = rows(pymq("message", "find", "ledger", "k1", *where))
    assert [row["body"] for row in found] == ["entry 1", "entry 3", "entry 5"]
    found = rows(pymq("message", "find", "ledger", "all", "--count", "2", "--from", "1h", *where))
    assert [row["body"] for row in found] == ["entry 4", "entry 5"]
    one = rows(pymq("message", "find", "ledger", found[0]["id"], *where))
    assert one == found[:1]
    none = refusal(pymq("message", "find", "ledger", "all", "--to", "1h", *where))
    assert none.status == 1 and "'all' within these times" in none.line
    wrong = refusal(pymq("message", "find", "ledger", "all", "--to", "noon", *where))
    assert wrong.status == 2 and "--to 'noon'" in wrong.line

    (shown,) = rows(pymq("message", "show", one[0]["id"], "--topic", "ledger", *where))
    assert one[0].items() <= shown.items()
    assert rows(pymq("message", "show", shown["offsetId"], *where)) == [shown]
    text = pymq("message", "show", shown["offsetId"], "-n", name_server).stdout
    lines = dict(line.split(None, 1) for line in text.splitlines())
    assert (lines["body"], lines["tags"], lines["keys"]) == ("entry 4", "T", "all k0")
    for wrong_id in ("0" * 32, one[0]["id"], "no id"):
        assert refusal(pymq("message", "show", wrong_id, *where)).status in (1, 2)


def test_brokers_are_listed_and_shown(name_server: str) -> None:
    where = ("-n", name_server, "-o", "json")
    rows(pymq("send", "counted", "one", *where))
    (broker,) = array(pymq("cluster", "list", *where))
    assert (broker["cluster"], broker["id"], broker["version"]) == ("DefaultCluster", 0, "V5_3_3")
    assert broker["putToday"] >= 1 and broker["putPerSecond"] >= 0
    table = pymq("cluster", "list", "-n", name_server).stdout.splitlines()
    assert table[0].split()[:4] == ["CLUSTER", "BROKER", "ID", "ADDRESS"]
    for name in (broker["broker"], broker["address"]):
        (found,) = rows(pymq("cluster", "state", name, *where))
        assert int(found["putMessageTimesTotal"]) >= 1
    text = pymq("cluster", "state", broker["broker"], "-n", name_server).stdout
    assert any(line.split()[0] == "runtime" for line in text.splitlines())
    stats = array(pymq("cluster", "stats", broker["broker"], *where))
    (sends,) = [row for row in stats if row["request"] == "SEND_MESSAGE_V2"]
    assert sends["code"] == 310 and sends["count"] >= 1 and sends["errors"] == 0
    assert 0 < sends["meanMs"] <= sends["maxMs"]
    table = pymq("cluster", "stats", broker["address"], "-n", name_server).stdout.splitlines()
    assert table[0].split()[:4] == ["REQUEST", "CODE", "COUNT", "ERRORS"]
    for verb in ("state", "stats", "clean"):
        nobody = refusal(pymq("cluster", verb, "nobody", *where))
        assert nobody.status == 2 and broker["broker"] in nobody.line
    for verb in ("state", "stats"):
        other = refusal(pymq("cluster", verb, name_server, *where))
        assert other.status == 2 and f"{name_server} is not a broker" in other.line


def test_a_broker_is_cleaned(tmp_path: Path) -> None:
    with Cluster(store=tmp_path / "store") as cluster:
        where = ("-n", cluster.name_server, "-o", "json")
        rows(pymq("send", "kept", "one", *where))
        (broker,) = array(pymq("cluster", "list", *where))
        (row,) = array(pymq("cluster", "clean", broker["broker"], *where))
        assert row == {
            "broker": broker["broker"], "address": broker["address"], "log": True, "queues": False
        }  # fmt: skip
        (row,) = array(pymq("cluster", "clean", broker["address"], "--queues", *where))
        assert row["queues"] is True
        found = rows(pymq("consume", "kept", "--from", "earliest", "--count", "1", *where))
        assert [record["body"] for record in found] == ["one"]


def test_a_member_with_a_count_finishes_what_it_printed(name_server: str) -> None:
    where = ("-n", name_server, "-o", "json")
    rows(pymq("send", "tasks", *where, given=b"1\n2\n3\n"))
    join = ("consume", "tasks", "--group", "pair", "--from", "earliest", "--count", "1")
    assert rows(pymq(*join, *where))[0]["body"] == "1"
    assert rows(pymq(*join, *where))[0]["body"] == "2"


def test_a_reader_that_has_enough(name_server: str) -> None:
    pymq("send", "flood", "x" * 1000, "--count", "2000", "-n", name_server)
    with running("consume", "flood", "-n", name_server, "--from", "earliest") as process:
        process.line()
        assert process.process.stdout is not None
        process.process.stdout.close()
        status = process.process.wait(DEADLINE_S)
        assert process.process.stderr is not None
        assert (status, process.process.stderr.read()) == (0, b"")


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("topic", "list", "-n", "127.0.0.1:1"), 3, "127.0.0.1:1"),
        (("topic", "list", "-n", "nowhere.invalid:1"), 3, "nowhere.invalid"),
        (("topic", "list", "-n", "nowhere"), 2, "host:port"),
        (("send", "bad topic", "x"), 2, "bad topic"),
        (("send", "t", "x", "--property", "a"), 2, "--property"),
        (("send", "t", "x", "--file", "f"), 2, "--file"),
        (("send", "t", ""), 2, "body"),
        (("send", "t"), 2, "nothing to send"),
        (("send", "known", "x", "--queue", "99"), 2, "broker-a:0"),
        (("consume", "nothere"), 1, "nothere"),
        (("consume", "nothere", "--group", "g"), 1, "nothere"),
        (("consume", "known", "--from", "soon"), 2, "--from"),
        (("consume", "known", "--from", "1", "--group", "g"), 2, "--group"),
        (("topic", "create", "t", "--cluster", "other"), 2, "DefaultCluster"),
    ],
)
def test_errors_are_one_line(
    arguments: tuple[str, ...], status: int, said: str, name_server: str
) -> None:
    if "known" in arguments:
        pymq("topic", "create", "known", "-n", name_server)
    found = refusal(pymq(*arguments, "--timeout", "30", NAMESRV_ADDR=name_server))
    assert found.status == status, found.line
    assert said in found.line
    assert found.line.startswith(f"pymq {arguments[0]}: ")


def test_an_answer_that_does_not_come() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        found = refusal(pymq("topic", "list", "-n", address, "--timeout", "0.3"))
    assert found.status == 3 and address in found.line


def test_sinks(cluster: Cluster, name_server: str) -> None:
    where = ("-n", name_server, "-o", "json")
    assert array(pymq("sink", "list", *where)) == []
    nobody = refusal(pymq("sink", "show", "nobody", *where))
    assert nobody.status == 1 and "no sink 'nobody'" in nobody.line
    with BulkClient(name_server, timeout_s=DEADLINE_S) as client:
        for name in ("one", "two"):
            batch = SinkBatch(sink=name, query="q", run="r", batch=7)
            wanted = operations.publish_batch(PublishRequest(batch=batch, runs=StagedRuns()))
            assert client.ask(cluster.broker_address, wanted).is_new
    found = array(pymq("sink", "list", *where))
    assert [(row["sink"], row["batch"], row["rows"]) for row in found] == [
        ("one", 7, 0),
        ("two", 7, 0),
    ]
    (shown,) = array(pymq("sink", "show", "two", *where))
    assert shown["lost"] == 0
    assert (shown["query"], shown["published"], shown["broker"]) == ("q", True, cluster.broker_name)
    text = pymq("sink", "list", "-n", name_server).stdout
    assert text.splitlines()[0].split()[:2] == ["SINK", "BROKER"]
    assert array(pymq("sink", "forget", "two", *where)) == [
        {"sink": "two", "broker": cluster.broker_name, "forgotten": True}
    ]
    assert [row["sink"] for row in array(pymq("sink", "list", *where))] == ["one"]
    again = refusal(pymq("sink", "forget", "two", *where))
    assert "pymq sink list" in again.line
