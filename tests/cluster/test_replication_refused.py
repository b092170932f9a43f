"""Slaves whose log does not fit that of their master: refused with a reason, and taking nothing."""

import shutil
import struct
from pathlib import Path

import pytest
from tests.cluster.replicated import (
    SEGMENT_BYTES,
    TABLES,
    Pair,
    eventually,
    ha_socket,
    make_tables,
    make_topic,
    pair_of,
    send,
    tables_at_slave,
    wait_refused,
)

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.message import Message
from pymq.protocol.replication_secret import Refusal, encode_refusal
from pymq.testing import Cluster


@pytest.mark.parametrize("report", [1 << 40, -7])
def test_an_impossible_report_ends_the_connection(
    pair: Pair, report: int, caplog: pytest.LogCaptureFixture
) -> None:
    send(pair, [b"1"])
    pair.wait_equal()
    with ha_socket(pair) as peer:
        peer.sendall(struct.pack(">q", 0) + struct.pack(">q", report))
        received = b""
        while data := peer.recv(1 << 16):
            received += data
    eventually(lambda: "confirms the log up to" in caplog.text)
    pair.wait_equal()
    send(pair, [b"2"])
    pair.wait_equal()


def test_a_slave_with_another_store_is_told_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small = {"segment_bytes": SEGMENT_BYTES}
    with (
        Cluster(tmp_path / "slave", store_settings=small) as other,
        BlockingClient([other.name_server]) as client,
    ):
        for n in range(10):
            client.send(Message(topic="mine", body=b"%d" % n))
    with pair_of(tmp_path) as pair:
        send(pair, [b"1"])

        def said(by: str) -> str:
            return "".join(one.getMessage() for one in caplog.records if one.name.endswith(by))

        eventually(lambda: "start the other one with an empty store" in said("ha.master"))
        eventually(lambda: "its log ends before this slave's" in said("ha.slave"))
        assert pair.slave_end() != pair.end


def test_a_slave_takes_no_tables_of_a_master_that_has_lost_its_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log ends before the slave's: the slave has what there is of topics and offsets, too."""
    monkeypatch.setattr("pymq.broker.ha.slave.REFUSED_RETRY_S", 0.5)
    caplog.set_level("DEBUG", "pymq.broker.ha.slave")
    with pair_of(tmp_path) as pair:
        make_tables(pair)
        pair.master.stop_broker()
        shutil.rmtree(pair.roots["master"])
        pair.master.start_broker()
        wait_refused(caplog, "its log ends before this slave's")
        assert tables_at_slave(pair) == TABLES
        make_topic(pair.master, "T")
        caplog.clear()
        wait_refused(caplog, "its log ends before this slave's")
        assert tables_at_slave(pair) == TABLES


def test_what_a_slave_reports_that_is_ahead_is_refused_with_a_reason(pair: Pair) -> None:
    send(pair, [b"1"])
    with ha_socket(pair) as peer:
        peer.sendall(struct.pack(">q", 1 << 40))
        received = b""
        while data := peer.recv(1 << 16):
            received += data
    assert received == encode_refusal(Refusal.LOG_AHEAD)
