"""What a master answers by how far its slave is: what is acknowledged survives the master."""

import struct
from pathlib import Path

import pytest
from tests.cluster.replicated import (
    Pair,
    ask,
    eventually,
    ha_socket,
    pair_of,
    plain_send,
    send,
    slaves_of,
    status_of,
)

from pymq.broker.replication_config import Role
from pymq.client.operations import SendStatus
from pymq.errors import BrokerError
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_master_knows_how_far_its_slave_is(tmp_path: Path, flush: str) -> None:
    with pair_of(tmp_path, flush=flush) as pair:
        send(pair, [b"%d" % n for n in range(10)])
        eventually(lambda: confirmed(pair) == pair.end)


def confirmed(pair: Pair) -> int:
    slaves = slaves_of(pair)
    assert len(slaves) <= 1
    return int(slaves[0]["slaveAckOffset"]) if slaves else -1


def test_a_synchronous_master_waits_for_its_slave(tmp_path: Path) -> None:
    rules = {"role": Role.SYNC_MASTER, "slave_timeout_ms": 60_000}
    with pair_of(tmp_path, replication=rules) as pair:
        pair.admin.topics.create("T", queue_count=1)
        eventually(lambda: status_of(pair) is SendStatus.OK)
        for n in range(50):
            assert status_of(pair) is SendStatus.OK
            assert n < pair.slave_end() >= pair.end  # it is there, not on its way
        pair.slave.stop_broker()
        eventually(lambda: not slaves_of(pair))
        assert status_of(pair) is SendStatus.SLAVE_NOT_AVAILABLE
        pair.slave.start_broker()
        eventually(lambda: status_of(pair) is SendStatus.OK)
        pair.wait_equal()


def test_a_slave_that_confirms_nothing_makes_sends_late(tmp_path: Path) -> None:
    rules = {"role": Role.SYNC_MASTER, "slave_timeout_ms": 300}
    with pair_of(tmp_path, replication=rules) as pair:
        pair.admin.topics.create("T", queue_count=1)
        pair.slave.stop_broker()
        with ha_socket(pair) as peer:
            peer.sendall(struct.pack(">q", 0))
            eventually(lambda: status_of(pair) is SendStatus.FLUSH_SLAVE_TIMEOUT)
        eventually(lambda: status_of(pair) is SendStatus.SLAVE_NOT_AVAILABLE)


def test_what_is_sent_back_and_may_be_lost_with_the_master_is_not_taken(tmp_path: Path) -> None:
    """With SUCCESS its consumer would commit beyond it, perhaps at another broker."""
    rules = {"role": Role.SYNC_MASTER, "slave_timeout_ms": 300}
    with pair_of(tmp_path, replication=rules) as pair:
        pair.admin.topics.create("T", queue_count=1)
        pair.admin.groups.create("g")
        pair.slave.stop_broker()

        def send_back(level: int) -> Command:
            fields = {"offset": "0", "group": "g", "delayLevel": str(level)}
            command = Command(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
            return ask(pair.master.broker_address, command)

        def answers(*expected: int) -> bool:
            return tuple(send_back(level).code for level in (0, -1)) == expected

        eventually(lambda: status_of(pair) is SendStatus.SLAVE_NOT_AVAILABLE)
        # Nobody lacks it who could take over, and another try would store it twice.
        assert answers(ResponseCode.SUCCESS, ResponseCode.SUCCESS)
        with ha_socket(pair) as peer:
            peer.sendall(struct.pack(">q", 0))
            late = ResponseCode.FLUSH_SLAVE_TIMEOUT
            eventually(lambda: status_of(pair) is SendStatus.FLUSH_SLAVE_TIMEOUT)
            assert answers(late, late)
            assert "slaveTimeout" in (send_back(0).remark or "")
            # So does who is refused that, whatever the status of such a send is.
            for delay in ("", "DELAY\x011\x02"):
                answer = ask(pair.master.broker_address, plain_send("%RETRY%g", delay))
                assert answer.code == ResponseCode.SYSTEM_ERROR
                assert "may be lost with this broker" in (answer.remark or "")


def test_a_recall_that_may_be_lost_with_the_master_is_not_done(tmp_path: Path) -> None:
    rules = {"role": Role.SYNC_MASTER, "slave_timeout_ms": 300}
    with pair_of(tmp_path, replication=rules, broker={"recall_messages": True}) as pair:
        pair.admin.topics.create("T", queue_count=1)
        pair.slave.stop_broker()
        with ha_socket(pair) as peer:
            peer.sendall(struct.pack(">q", 0))
            eventually(lambda: status_of(pair) is SendStatus.FLUSH_SLAVE_TIMEOUT)
            timer = plain_send("T", "TIMER_DELAY_MS\x01600000\x02UNIQ_KEY\x01K\x02")
            sent = ask(pair.master.broker_address, timer)
            assert sent.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
            handle = (sent.fields or {})["recallHandle"]
            fields = {"topic": "T", "recallHandle": handle, "producerGroup": "pg"}
            answer = ask(pair.master.broker_address, Command(RequestCode.RECALL_MESSAGE, fields))
            assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT, answer


def test_messages_are_refused_while_too_few_follow(tmp_path: Path) -> None:
    rules = {"role": Role.SYNC_MASTER, "in_sync_replicas_min": 2, "slave_timeout_ms": 60_000}
    with pair_of(tmp_path, replication=rules) as pair:
        pair.admin.topics.create("T", queue_count=1)
        eventually(lambda: confirmed(pair) >= 0)
        assert status_of(pair) is SendStatus.OK
        pair.slave.stop_broker()
        eventually(lambda: not slaves_of(pair))
        before = pair.end
        with pytest.raises(BrokerError, match="in-sync replicas not enough"):
            for _ in range(100):
                status_of(pair)
        assert pair.end - before < 100 * 200
        stored = pair.end
        with pytest.raises(BrokerError, match="in-sync replicas not enough"):
            status_of(pair)
        assert pair.end == stored
