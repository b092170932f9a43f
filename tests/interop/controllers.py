"""Controllers as child processes, ours and RocketMQ's, and brokers that fail over under them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self, TypeVar

from tests.cluster.cli_processes import Running
from tests.interop.jars import class_path
from tests.interop.peers import RealBroker, free_port
from tests.interop.processes import JavaProcess

from pymq.errors import PymqError
from pymq.net.blocking import BlockingChannel
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.controller import (
    ControllerMetadataResponse,
    ReplicaInfoResponse,
    SyncStateSet,
)

BROKER_NAME: Final = "broker-a"
READY_TIMEOUT_S: Final = 180.0
DEADLINE_S: Final = 120.0
_ASK_TIMEOUT_S: Final = 3.0

T = TypeVar("T")


class PymqController:
    """``pymq controller`` on a free port; a context manager.

    Args:
        folder: for its configuration.
        store: the value of ``--store``.
        properties: more keys of its configuration; ``{address}`` in a value is its own.
    """

    def __init__(self, folder: Path, store: str, **properties: str) -> None:
        self.port = free_port(0)
        self.address = f"127.0.0.1:{self.port}"
        folder.mkdir(parents=True, exist_ok=True)
        self._config = folder / f"controller-{self.port}.conf"
        lines = {"listenPort": str(self.port), **properties}
        text = "".join(f"{key}={value}\n" for key, value in lines.items())
        self._config.write_text(text.replace("{address}", self.address))
        self._store = store
        self._process: Running | None = None

    def __enter__(self) -> Self:
        self._process = Running(
            "controller", "-q", "-c", self._config, "--store", self._store, "-o", "json"
        )
        assert json.loads(self._process.line())["controller"] == self.address
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.process.pid

    def kill(self) -> None:
        """Kill it (SIGKILL)."""
        if self._process is not None:
            self._process.kill()


class RealController:
    """RocketMQ's own controller, alone; a context manager."""

    def __init__(self, version: str, folder: Path, **properties: str | int) -> None:
        self.port = free_port(0)
        self.address = f"127.0.0.1:{self.port}"
        self._version = version
        self._home = folder
        (folder / "conf").mkdir(parents=True)
        settings = {
            "controllerDLegerGroup": "group1",
            "controllerDLegerPeers": f"n0-{self.address}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": folder / "store",
            "mappedFileSize": 1 << 20,
            "bindAddress": "127.0.0.1",
            **properties,
        }
        self._config = folder / "conf" / "controller.conf"
        self._config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self._process: JavaProcess | None = None

    def __enter__(self) -> Self:
        self._process = JavaProcess(
            f"controller {self._version} at {self.address}",
            self._home,
            [
                "-Xms64m", "-Xmx256m", "-cp", class_path(self._version),
                "org.apache.rocketmq.controller.ControllerStartup", "-c", str(self._config),
            ],
            {},
        )  # fmt: skip
        self._process.wait_for_text("boot success", timeout_s=READY_TIMEOUT_S)
        eventually(lambda: leader_of(self.address) is not None, "it leads")
        return self

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.kill()


def controlled_broker(
    version: str, name_server: str, controllers: str, store: Path, **properties: str | int | bool
) -> RealBroker:
    """Return an official broker, not started yet, whose master a controller elects."""
    return RealBroker(
        version,
        [name_server],
        store_dir=store,
        java_options=("-Xms128m", "-Xmx384m", "-XX:MaxDirectMemorySize=256m"),
        brokerName=BROKER_NAME,
        enableControllerMode=True,
        controllerAddr=controllers,
        haListenPort=free_port(0),
        mappedFileSizeCommitLog=1 << 20,
        **{
            "allAckInSyncStateSet": True,
            "syncBrokerMetadataPeriod": 1000,
            "checkSyncStateSetPeriod": 1000,
            "syncControllerMetadataPeriod": 1000,
            **properties,
        },
    )


def eventually(condition: Callable[[], bool], what: str, interval_s: float = 0.05) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(interval_s)


def known(ask: Callable[[], T | None], what: str) -> T:
    """Return what is asked for, once there is an answer: a controller may be late with it."""
    deadline = time.monotonic() + DEADLINE_S
    while (found := ask()) is None:
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


def ask(address: str, code: int, **fields: str) -> Command:
    """Return the answer of a controller."""
    host, port = address.split(":")
    channel = BlockingChannel.connect(host, int(port), timeout_s=_ASK_TIMEOUT_S)
    try:
        return channel.request(Command(code, fields or None), timeout_s=_ASK_TIMEOUT_S)
    finally:
        channel.close()


def leader_of(*addresses: str) -> str | None:
    """Return who leads, as the first controller says that knows."""
    for address in addresses:
        try:
            answer = ask(address, RequestCode.CONTROLLER_GET_METADATA_INFO)
        except PymqError:
            continue
        found = ControllerMetadataResponse.from_fields(answer.fields).leader_address
        if found:
            return found
    return None


def state_of(*addresses: str) -> tuple[ReplicaInfoResponse, frozenset[int]]:
    """Return master and sync state set of the group, as the leader of the controllers says."""
    nothing = ReplicaInfoResponse(), frozenset[int]()
    leader = leader_of(*addresses)
    if leader is None:
        return nothing
    try:
        answer = ask(leader, RequestCode.CONTROLLER_GET_REPLICA_INFO, brokerName=BROKER_NAME)
    except PymqError:
        return nothing
    if answer.code != ResponseCode.SUCCESS:
        return nothing
    found = SyncStateSet.decode(answer.body)
    return ReplicaInfoResponse.from_fields(answer.fields), found.broker_ids


def known_state_of(*addresses: str) -> tuple[ReplicaInfoResponse, frozenset[int]]:
    """Return the same, once there is a master and the controllers say so."""

    def asked() -> tuple[ReplicaInfoResponse, frozenset[int]] | None:
        found = state_of(*addresses)
        return None if found[0].master_broker_id is None else found

    return known(asked, "there is a master")
