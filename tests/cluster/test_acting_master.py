"""A slave acts for its master while that is away, and gives back what it has kept meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.replicated import Pair, ask, eventually, pair_of, send

from pymq.broker.replication_config import ReplicationConfig
from pymq.errors import ConfigurationError
from pymq.protocol.bodies import LockRequest, LockResponse, MessageQueue
from pymq.protocol.codes import PullFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.replication import HaInfo

#: A broker that is killed is missed when its connections end; one that only waits for its turn on
#: a busy machine must not be missed.
ACTING: dict[str, Any] = {"acting_master": True, "group_interval_ms": 50, "not_active_ms": 120_000}
#: So late that an offset that follows now and then would not be there.
LATE = {"metadata_interval_ms": 500}
QUEUE = {"consumerGroup": "g", "topic": "T", "queueId": "0"}


@pytest.fixture
def acting_pair(tmp_path: Path) -> Iterator[Pair]:
    with pair_of(
        tmp_path,
        replication=ACTING,
        slave_replication={**ACTING, **LATE},
        slave_read=False,
    ) as pair:
        pair.admin.topics.create("T", queue_count=1)
        pair.admin.groups.create("g")
        pair.admin.groups.create("reader")
        send(pair, [b"%d" % number for number in range(10)])
        pair.wait_equal()
        for code, fields in (
            (RequestCode.GET_TOPIC_CONFIG, {"topic": "T"}),
            (RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"}),
            (RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "reader"}),
        ):
            eventually(lambda code=code, fields=fields: pair.ask(code, fields).code == 0)
        yield pair


def acts(pair: Pair) -> bool:
    """Return whether the slave may be read from, which a slave otherwise may not here."""
    return pair.ask_pull("T", 0, 0).code == ResponseCode.SUCCESS


def offset_at(address: str, group: str = "g") -> str | None:
    fields = {**QUEUE, "consumerGroup": group, "setZeroIfNotFound": "false"}
    answer = ask(address, Command(RequestCode.QUERY_CONSUMER_OFFSET, fields))
    return (answer.fields or {}).get("offset")


def commit_at(address: str, offset: int, group: str = "g") -> None:
    fields = {**QUEUE, "consumerGroup": group, "commitOffset": str(offset)}
    answer = ask(address, Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields))
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def pulled_at(address: str, offset: int) -> tuple[int, str | None]:
    """Return the code of a pull, and where it says to go on."""
    fields = {
        **QUEUE,
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": str(int(PullFlag.SUBSCRIPTION)),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subVersion": "0",
        "subscription": "*",
    }
    answer = ask(address, Command(RequestCode.PULL_MESSAGE, fields))
    return answer.code, (answer.fields or {}).get("nextBeginOffset")


def test_a_slave_acts_and_gives_back(acting_pair: Pair) -> None:
    pair = acting_pair
    assert not acts(pair)
    commit_at(pair.master.broker_address, 3)
    eventually(lambda: offset_at(pair.slave.broker_address) == "3")
    for offset in (5, 8):
        address = pair.master.broker_address
        pair.master.kill_broker()
        eventually(lambda: acts(pair), "the slave acts")
        assert pair.pull("T", 0, 0)[:10] == [b"%d" % number for number in range(10)]
        commit_at(pair.slave.broker_address, offset)
        pair.master.start_broker()
        # At once: before clients find it.
        assert offset_at(address) == str(offset)
        eventually(lambda: not acts(pair), "the slave does not act any more")
        commit_at(address, offset + 1)
        eventually(lambda n=offset: offset_at(pair.slave.broker_address) == str(n + 1))
        send(pair, [b"more"])
        pair.wait_equal()


def test_it_gives_out_locks_and_takes_no_messages(acting_pair: Pair) -> None:
    pair = acting_pair
    pair.master.kill_broker()
    eventually(lambda: acts(pair), "the slave acts")
    queue = MessageQueue("T", pair.master.broker_name, 0)
    for client_id, wanted in (("one", [queue]), ("two", [])):
        request = LockRequest(consumer_group="g", client_id=client_id, queues=[queue])
        answer = pair.ask(RequestCode.LOCK_BATCH_MQ, {}, request.encode())
        assert LockResponse.decode(answer.body).queues == wanted
    fields = {"producerGroup": "p", "topic": "T", "queueId": "0"}
    assert pair.ask(RequestCode.SEND_MESSAGE, fields, b"x").code != ResponseCode.SUCCESS


def test_a_restart_of_the_slave_keeps_what_was_committed_there(acting_pair: Pair) -> None:
    pair = acting_pair
    address = pair.master.broker_address
    pair.master.kill_broker()
    eventually(lambda: acts(pair), "the slave acts")
    commit_at(pair.slave.broker_address, 6)
    pair.slave.restart_broker()
    eventually(lambda: acts(pair), "the slave acts again")
    pair.master.start_broker()
    assert offset_at(address) == "6"


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_slave_that_was_away_sets_no_group_back(acting_pair: Pair, is_killed: bool) -> None:
    """It acts for the master with what it knew when it left, and only ``h`` commits there."""
    pair = acting_pair
    address = pair.master.broker_address
    pair.admin.groups.create("h")
    for group in "gh":
        commit_at(address, 3, group)
        eventually(lambda group=group: offset_at(pair.slave.broker_address, group) == "3")
    pair.slave.stop_broker()
    for offset in range(4, 10):
        commit_at(address, offset)
        commit_at(address, offset - 2, "h")
    if is_killed:
        pair.master.kill_broker()
    else:
        pair.master.stop_broker()
    pair.slave.start_broker()
    eventually(lambda: acts(pair), "the slave acts")
    commit_at(pair.slave.broker_address, 5, "h")
    pair.slave.restart_broker()
    eventually(lambda: acts(pair), "the slave acts again")
    pair.master.start_broker()
    assert (offset_at(address), offset_at(address, "h")) == ("9", "5")
    eventually(lambda: offset_at(pair.slave.broker_address) == "9")


def test_what_the_master_had_not_saved_is_at_the_slave(acting_pair: Pair) -> None:
    """A group that commits nothing there goes on where it was, too."""
    pair = acting_pair
    address, slave = pair.master.broker_address, pair.slave.broker_address
    path = pair.roots["master"] / "config" / "consumerOffset.json"
    for offset in (4, 8):
        commit_at(address, offset)
        eventually(lambda n=offset: offset_at(slave) == str(n))
        saved = path.read_bytes()
        pair.master.kill_broker()
        path.write_bytes(saved)
        eventually(lambda: acts(pair), "the slave acts")
        pair.master.start_broker()
        assert offset_at(address) == str(offset)
        eventually(lambda: not acts(pair), "the slave does not act any more")


def test_a_reset_is_carried_out_at_the_slave_once(acting_pair: Pair) -> None:
    """A group that was stopped and reset begins while the slave acts."""
    pair = acting_pair
    address, slave = pair.master.broker_address, pair.slave.broker_address
    commit_at(address, 10)
    eventually(lambda: offset_at(slave) == "10")
    reset = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"}
    asked = Command(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {**reset, "offset": "3", "queueId": "0"}
    )
    assert ask(address, asked).code == ResponseCode.SUCCESS
    eventually(lambda: offset_at(slave) == "3")
    assert pulled_at(slave, 10)[0] != ResponseCode.PULL_OFFSET_MOVED  # it does not act yet
    pair.master.kill_broker()
    eventually(lambda: acts(pair), "the slave acts")
    assert pulled_at(slave, 10) == (ResponseCode.PULL_OFFSET_MOVED, "3")
    assert pulled_at(slave, 3)[0] == ResponseCode.SUCCESS
    commit_at(slave, 9)
    assert offset_at(slave) == "9"
    pair.slave.restart_broker()
    eventually(lambda: acts(pair), "the slave acts again")
    pair.master.start_broker()
    assert offset_at(address) == "9"
    assert pulled_at(address, 9)[0] == ResponseCode.SUCCESS


def test_a_master_that_dies_before_it_is_online_ends_the_hand_over(acting_pair: Pair) -> None:
    """What it has taken over is replaced by nothing; and there is nobody else to commit to."""
    pair = acting_pair
    master, address = pair.master.broker_address, pair.slave.broker_address
    pair.master.kill_broker()
    eventually(lambda: acts(pair), "the slave acts")
    commit_at(address, 4)

    def commit(offset: int) -> int:
        fields = {**QUEUE, "commitOffset": str(offset)}
        return pair.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code

    with socket.create_server(("127.0.0.1", 0)) as coming:
        coming.settimeout(60)
        where = HaInfo(ha_address=f"127.0.0.1:{coming.getsockname()[1]}")
        pair.ask(RequestCode.EXCHANGE_BROKER_HA_INFO, where.to_fields())
        connection, _ = coming.accept()
        connection.settimeout(60)
        with connection:
            assert connection.recv(8)  # it follows, and is asked for its offsets
            assert commit(5) == ResponseCode.SERVICE_NOT_AVAILABLE
            fields = {
                **QUEUE,
                "queueOffset": "0",
                "maxMsgNums": "1",
                "sysFlag": str(int(PullFlag.SUBSCRIPTION | PullFlag.COMMIT_OFFSET)),
                "commitOffset": "6",
                "suspendTimeoutMillis": "0",
                "subVersion": "0",
                "subscription": "*",
            }
            assert pair.ask(RequestCode.PULL_MESSAGE, fields).code == ResponseCode.SUCCESS
            assert offset_at(address) == "4"
    eventually(lambda: commit(7) == ResponseCode.SUCCESS, "it is committed here again")
    pair.master.start_broker()
    assert offset_at(master) == "7"


def test_a_name_server_may_say_that_the_lowest_id_has_changed(acting_pair: Pair) -> None:
    """NOTIFY_MIN_BROKER_ID_CHANGE, as RocketMQ's send it."""
    pair = acting_pair
    address = pair.slave.broker_address
    change = {
        "minBrokerId": "1",
        "brokerName": pair.master.broker_name,
        "minBrokerAddr": address,
        "offlineBrokerAddr": pair.master.broker_address,
    }

    def told() -> bool:
        pair.ask(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, change)
        return acts(pair)

    # The master is alive, and the next look at the group, in 50 ms, says so.
    eventually(told, "the slave acts")
    eventually(lambda: not acts(pair), "the slave does not act")
    commit_at(pair.master.broker_address, 4)
    eventually(lambda: offset_at(address) == "4")
    # Another group's is not its.
    pair.ask(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, {**change, "brokerName": "other"})
    assert not acts(pair)


def test_a_controller_excludes_it() -> None:
    with pytest.raises(ConfigurationError, match="enableSlaveActingMaster"):
        ReplicationConfig(controller_mode=True, controllers=("c:1",), acting_master=True)
