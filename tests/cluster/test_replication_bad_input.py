"""What is wrong with a pair, each time in one message that says what to do; nothing is changed."""

from __future__ import annotations

import logging
import random
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.replicated import (
    SEGMENT_BYTES,
    TIMEOUT_S,
    Pair,
    eventually,
    own_port,
    pair_of,
    send,
)
from tests.interop.peers import free_port

from pymq.broker.replication_config import Role
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.clock import Clock
from pymq.errors import ConfigurationError
from pymq.protocol.addresses import join_address
from pymq.protocol.message import Message
from pymq.testing import Cluster

#: So that a message that would come again does: slaves of these tests ask twice a second at least.
SEVERAL_TRIES_S = 2.0
HOUR_MS = 3_600_000


def warnings(caplog: pytest.LogCaptureFixture, by: str) -> list[str]:
    """Return what a module has said that an administrator should know."""
    return [
        one.getMessage()
        for one in caplog.records
        if one.name.endswith(by) and one.levelno >= logging.WARNING
    ]


def wait_one(caplog: pytest.LogCaptureFixture, by: str, *parts: str) -> None:
    """Wait for the one warning of a module that has all parts."""

    def found() -> list[str]:
        return [one for one in warnings(caplog, by) if all(part in one for part in parts)]

    eventually(lambda: bool(found()), f"{parts} of {by}\n{caplog.text}")
    assert len(found()) == 1, found()


def files(root: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in sorted((root / "commitlog").iterdir())}


def messages(count: int, size_bytes: int) -> list[bytes]:
    """Return bodies that are the same each time, and cannot be compressed."""
    return [random.Random(number).randbytes(size_bytes) for number in range(count)]


@pytest.mark.parametrize("beyond", [0, 3])
@pytest.mark.parametrize("size_bytes", [10, 200_000])
def test_a_master_that_took_other_messages_at_the_same_place(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    beyond: int,
    size_bytes: int,
) -> None:
    """It lost the end of its log, which its slave has, and has a log as long by now, or longer."""
    monkeypatch.setattr("pymq.broker.ha.slave.REFUSED_RETRY_S", 0.2)
    with pair_of(tmp_path) as pair:
        pair.admin.topics.create("T", queue_count=1)
        send(pair, messages(3, 20))
        pair.wait_equal()
        pair.slave.stop_broker()
        pair.master.stop_broker()
        shutil.copytree(pair.roots["master"], tmp_path / "before")
        pair.master.start_broker()
        pair.slave.start_broker()
        send(pair, messages(2, size_bytes))
        pair.wait_equal()
        end = pair.end
        pair.slave.stop_broker()
        pair.master.stop_broker()
        shutil.rmtree(pair.roots["master"])
        shutil.copytree(tmp_path / "before", pair.roots["master"])
        pair.master.start_broker()
        send(pair, messages(2 + beyond, size_bytes))  # the same, at other times
        assert (pair.end == end) == (beyond == 0)
        theirs, ours = files(pair.roots["slave"]), pair.log("master", end)
        caplog.clear()
        pair.slave.start_broker()
        wait_one(caplog, "ha.master", "has other bytes before that", "empty store")
        wait_one(caplog, "ha.slave", "other bytes than this slave's", "empty store")
        time.sleep(SEVERAL_TRIES_S)
        wait_one(caplog, "ha.slave", "other bytes than this slave's")
        wait_one(caplog, "ha.master", "has other bytes before that")
        pair.slave.stop_broker()
        assert files(pair.roots["slave"]) == theirs
        assert pair.log("master", end) == ours != b"".join(theirs.values())[:end]
        shutil.rmtree(pair.roots["slave"])  # as the message says
        pair.slave.start_broker()
        pair.wait_equal()


def test_a_shorter_store_of_somebody_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        Cluster(tmp_path / "slave", store_settings={"segment_bytes": SEGMENT_BYTES}) as other,
        BlockingClient([other.name_server], timeout_s=TIMEOUT_S) as client,
    ):
        client.send(Message(topic="mine", body=b"x"))
    with pair_of(tmp_path) as pair:
        theirs = files(pair.roots["slave"])
        # It is empty until then, and the slave is ahead of it.
        send(pair, messages(10, 20))
        wait_one(caplog, "ha.slave", "other bytes than this slave's", "empty store")
        assert files(pair.roots["slave"]) == theirs


def test_a_log_that_is_the_same_is_followed_after_any_stop(tmp_path: Path) -> None:
    """Ends at every place of a file, and in the first bytes of the next one."""
    with pair_of(tmp_path) as pair:
        pair.admin.topics.create("T", queue_count=1)
        for _ in range(14):
            send(pair, messages(1, 150_000))
            pair.wait_equal()
            pair.slave.restart_broker()
            send(pair, messages(1, 10))
            pair.wait_equal()


@pytest.mark.parametrize("factor", [2, 0.5])
def test_files_of_another_size(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, factor: float
) -> None:
    with slave_of_another_kind(
        tmp_path, store_settings={"segment_bytes": int(SEGMENT_BYTES * factor)}
    ) as pair:
        send(pair, messages(12, 200_000))
        wait_one(caplog, "ha.slave", "mappedFileSizeCommitLog", "use the master's size here")


@contextmanager
def slave_of_another_kind(tmp_path: Path, **settings: Any) -> Iterator[Pair]:
    """A pair whose slave was started with other settings."""
    with ExitStack() as stack:
        pair = Pair(tmp_path, stack)
        pair.slave.stop()
        pair.roots["slave"] = tmp_path / "other"
        settings.setdefault("store_settings", {"segment_bytes": SEGMENT_BYTES})
        pair.slave = stack.enter_context(
            Cluster(
                tmp_path / "other",
                broker={
                    **own_port(),
                    "broker_id": 1,
                    "name_servers": (pair.master.name_server,),
                },
                replication={"role": Role.SLAVE, "metadata_interval_ms": 500},
                **settings,
            )
        )
        yield pair


class WrongClock(Clock):
    """Ahead of the machine's by some time."""

    def __init__(self, ahead_ms: int) -> None:
        super().__init__()
        self._ahead_ms = ahead_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self._ahead_ms


@pytest.mark.parametrize(("ahead_ms", "which"), [(3 * HOUR_MS, "behind"), (-HOUR_MS, "ahead of")])
def test_clocks_that_are_hours_apart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ahead_ms: int, which: str
) -> None:
    with slave_of_another_kind(tmp_path, clock=WrongClock(ahead_ms)) as pair:
        told = (f" s {which} that of this slave", "have both clocks set")
        wait_one(caplog, "ha.metadata", *told)
        # The answer may have been on its way for a while.
        apart_s = re.search(r"the clock of master \S+ is (\d+) s", caplog.text)
        assert apart_s and abs(int(apart_s[1]) - abs(ahead_ms) // 1000) < 50
        pair.admin.topics.create("T", queue_count=1)
        send(pair, messages(3, 10))
        pair.wait_equal()
        time.sleep(SEVERAL_TRIES_S)
        wait_one(caplog, "ha.metadata", *told)


def test_two_masters_of_one_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    often = {"register_interval_ms": 200}
    with (
        Cluster(tmp_path / "one", broker=often) as one,
        Cluster(tmp_path / "two", broker={**often, "name_servers": (one.name_server,)}) as two,
    ):
        for other, own in (one, two), (two, one):
            wait_one(
                caplog,
                "broker.registration",
                f"registered as broker 0 of group broker-a: {other.broker_address}",
                f"this one is {own.broker_address}",
                "give it another brokerName",
            )
        time.sleep(1.0)
        assert len(warnings(caplog, "broker.registration")) == 2


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "127.0.0.2"])
@pytest.mark.parametrize(
    ("distance", "ha_distance"), [(0, None), (1, None), (-1, -1)], ids=["clients", "usual", "given"]
)
def test_a_slave_that_is_told_to_follow_itself(
    tmp_path: Path, host: str, distance: int, ha_distance: int | None
) -> None:
    """At its port for clients, or at the one that slaves have if it is the master."""
    port = free_port(-2, -1, 0, 1)
    cluster = Cluster(
        tmp_path / "slave",
        broker={"broker_id": 1, "listen_port": port},
        replication={
            "role": Role.SLAVE,
            "master_address": join_address(host, port + distance),
            "listen_port": None if ha_distance is None else port + ha_distance,
        },
    )
    with pytest.raises(ConfigurationError, match="this is the address of this slave itself"):
        cluster.start()


def test_a_master_on_the_machine_of_a_slave_may_have_the_port_beside_it(tmp_path: Path) -> None:
    port = free_port(-2, 0, 1)
    with Cluster(
        tmp_path / "slave",
        broker={"broker_id": 1, "listen_port": port},
        replication={
            "role": Role.SLAVE,
            "master_address": join_address("127.0.0.1", port + 1),
            "listen_port": 0,
        },
    ) as slave:
        assert slave.broker_address
