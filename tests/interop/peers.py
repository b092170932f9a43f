"""Official name servers and brokers as child processes on loopback.

Both are context managers; leaving the block ends them, cleanly when there is a store to keep.
``stop`` (SIGTERM) and ``kill`` (SIGKILL, leaves the ``abort`` file) may be followed by ``start``
again: port and store stay.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
import shutil
import socket
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

from tests.interop.jars import class_path
from tests.interop.processes import POLL_INTERVAL_S, JavaProcess, PeerFailed

READY_TIMEOUT_S: Final = 180.0  # seconds on an idle machine; 45 were seen on a busy one
READY_TEXT: Final = "boot success"
DEFAULT_JAVA_OPTIONS: Final = (
    *("-Xms256m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m", "-XX:+UseSerialGC"),
)
#: A name server of a test never earns what its second compiler costs; a broker, which is busy even
#: while nobody asks it anything, soon does.
_NAME_SERVER_OPTIONS: Final = (
    *("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
)

# 4.x stops at start when the file of its program is missing from $ROCKETMQ_HOME/conf.
_LOGBACK_FILES: Final = ("logback_broker.xml", "logback_namesrv.xml", "logback_tools.xml")
_LOGBACK_TEXT: Final = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %-5level %logger{20} %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""
# Up to 4.5.1 these keys are spelled with one p.
_OLD_SPELLING: Final = {
    "mappedFileSizeCommitLog": "mapedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue": "mapedFileSizeConsumeQueue",
}
# A test machine's disk may be fuller than a broker likes: it would refuse writes at 90 %.
_DISK_OPTIONS: Final = (
    "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.98",
    "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.97",
)
# A busy machine must not make a broker refuse, nor say of a slow disk that it has not stored.
_PATIENCE: Final = {
    "brokerFastFailureEnable": False,
    "osPageCacheBusyTimeOutMills": 600_000,
    "syncFlushTimeout": 60_000,
}
# Below the kernel's range for outgoing connections, which could otherwise take a port
# between our looking and the peer's listening.
#: In blocks, the third port of which is given away: the peers use those beside it, too.
_PORTS: Final = range(15_000, 32_000, 4)
_PORT_ATTEMPTS: Final = 200
#: Processes that share a test run; each has ports of its own, see ``build.sh``.
_WORKERS_MAX: Final = 4

_ROUTE_BY_TOPIC: Final = 105
_ROUTE_TIMEOUT_S: Final = 3.0


class RealNameServer:
    """An official name server.

    Args:
        version: one of ``jars.VERSIONS``.
        java_options: heap and other options of its JVM.
        properties: more keys of its configuration file.
    """

    def __init__(
        self,
        version: str,
        *,
        java_options: Sequence[str] = _NAME_SERVER_OPTIONS,
        **properties: str | int | bool,
    ) -> None:
        self.version = version
        self.port = free_port(0)
        self.address = f"127.0.0.1:{self.port}"
        self._java_options = tuple(java_options)
        self._properties = {"listenPort": self.port, "bindAddress": "127.0.0.1", **properties}
        self._home = Home("namesrv")
        self._process: JavaProcess | None = None

    def start(self) -> Self:
        """Start it and wait until it serves.

        Raises:
            PeerFailed: it does not get there; the text ends with its log.
        """
        conf = self._home.write_properties("namesrv.properties", self._properties)
        self._process = JavaProcess(
            f"name server {self.version} at {self.address}",
            self._home.path,
            [
                *self._java_options, "-cp", class_path(self.version),
                "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(conf),
            ],
            {},
        )  # fmt: skip
        self._process.wait_for_text(READY_TEXT, timeout_s=READY_TIMEOUT_S)
        return self

    @property
    def pid(self) -> int:
        """Process id of the last start."""
        return _started(self._process).pid

    def stop(self) -> None:
        """Stop it cleanly (SIGTERM) and wait for its end."""
        _started(self._process).stop()

    def kill(self) -> None:
        """Kill it (SIGKILL) and wait for its end."""
        _started(self._process).kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.kill()  # it keeps nothing; a clean stop takes three seconds
        self._home.remove()


class RealBroker:
    """An official broker, standalone unless the properties say otherwise.

    Listens on ``port``, ``port - 2`` (VIP) and ``port + 1`` (HA). Publishes ``127.0.0.1``.

    Args:
        version: one of ``jars.VERSIONS``.
        name_server_addresses: ``host:port`` of each name server to register with; may be empty.
        store_dir: where the store is or shall be (``storePathRootDir``). It is kept when the
            broker goes. Without it, a temporary one that goes with the broker.
        java_options: heap and other options of its JVM; benchmarks want a larger heap.
        broker_properties: keys of ``broker.conf`` as RocketMQ spells them, for instance
            ``mappedFileSizeCommitLog=1 << 20`` (written in the 4.5.1 spelling, too),
            ``flushDiskType="SYNC_FLUSH"``, ``brokerName="broker-b"``.
    """

    def __init__(
        self,
        version: str,
        name_server_addresses: Sequence[str],
        *,
        store_dir: Path | None = None,
        java_options: Sequence[str] = DEFAULT_JAVA_OPTIONS,
        **broker_properties: str | int | bool,
    ) -> None:
        self.version = version
        self._home = Home("broker")
        self._store_is_kept = store_dir is not None
        self.store_dir = store_dir if store_dir is not None else self._home.path / "store"
        self.name_server_addresses = tuple(name_server_addresses)
        self._java_options = tuple(java_options)
        self.properties: dict[str, str | int | bool] = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": 0,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "bindAddress": "127.0.0.1",  # 5.x; 4.x always listens on every interface
            "storePathRootDir": str(self.store_dir),
            "storePathCommitLog": str(self.store_dir / "commitlog"),
            "autoCreateTopicEnable": True,
            "enablePropertyFilter": True,
            "flushDiskType": "ASYNC_FLUSH",
            "diskMaxUsedSpaceRatio": 95,
            **_PATIENCE,
            **broker_properties,
        }
        if self.name_server_addresses:
            self.properties.setdefault("namesrvAddr", ";".join(self.name_server_addresses))
        for key, old_key in _OLD_SPELLING.items():
            if key in self.properties:
                self.properties.setdefault(old_key, self.properties[key])
        self.properties.setdefault("listenPort", free_port(-2, 0, 1))
        self.name = str(self.properties["brokerName"])
        self.cluster_name = str(self.properties["brokerClusterName"])
        self.port = int(self.properties["listenPort"])
        self.address = f"127.0.0.1:{self.port}"
        self._process: JavaProcess | None = None

    def start(self) -> Self:
        """Start it and wait until it serves and every name server knows it.

        Raises:
            PeerFailed: it does not get there; the text ends with its log.
        """
        conf = self._home.write_properties("broker.conf", self.properties)
        self.store_dir.mkdir(parents=True, exist_ok=True)
        self._process = JavaProcess(
            f"broker {self.version} at {self.address}",
            self._home.path,
            [
                *self._java_options, *_DISK_OPTIONS, "-cp", class_path(self.version),
                "org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf),
            ],
            {},
        )  # fmt: skip
        self._process.wait_for_text(READY_TEXT, timeout_s=READY_TIMEOUT_S)
        for address in self.name_server_addresses:
            # Every broker creates a system topic of its own name.
            wait_for_route(address, self.name, broker_address=self.address)
        return self

    @property
    def pid(self) -> int:
        """Process id of the last start."""
        return _started(self._process).pid

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.running

    def stop(self) -> None:
        """Stop it cleanly (SIGTERM) and wait for its end: everything is flushed, no ``abort``."""
        _started(self._process).stop()

    def kill(self) -> None:
        """Kill it (SIGKILL) and wait for its end: the ``abort`` file stays."""
        _started(self._process).kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        try:
            if self._process is not None:
                if self._store_is_kept:
                    self._process.stop()
                else:
                    self._process.kill()  # a clean stop takes 4 s (4.9) to 17 s (5.x)
        finally:
            self._home.remove()


class Home:
    """A ROCKETMQ_HOME of its own: configuration, logs and (by default) the store."""

    def __init__(self, kind: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"pymq-real-{kind}-"))
        (self.path / "conf").mkdir()
        for name in _LOGBACK_FILES:
            (self.path / "conf" / name).write_text(_LOGBACK_TEXT)

    def write_properties(self, name: str, properties: dict[str, Any]) -> Path:
        path = self.path / "conf" / name
        lines = [f"{key}={_java_text(value)}\n" for key, value in properties.items()]
        path.write_text("".join(lines))
        return path

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def free_port(*offsets: int) -> int:
    """Return a port p such that p + each offset is free on loopback at this moment.

    Args:
        offsets: -2 to 1.

    Raises:
        PeerFailed: none found.
    """
    assert all(-2 <= offset <= 1 for offset in offsets)
    blocks = _blocks()
    for _ in range(_PORT_ATTEMPTS):
        port = next(blocks) + 2
        if all(_is_free(port + offset) for offset in offsets):
            return port
    raise PeerFailed(f"no free port p with p + {offsets} free in {_PORTS} (tried {_PORT_ATTEMPTS})")


@functools.cache
def _blocks() -> Iterator[int]:
    """Yield first ports of blocks, in any order, each one before any comes again.

    A server that is stopped wants its port back: nobody else may have got it meanwhile, neither in
    this process nor in another one of the run.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    blocks = list(_PORTS[worker % _WORKERS_MAX :: _WORKERS_MAX])
    random.SystemRandom().shuffle(blocks)  # two test runs must not walk through the same ports
    return itertools.cycle(blocks)


def wait_for_route(
    name_server: str,
    topic: str,
    *,
    broker_address: str | None = None,
    timeout_s: float = READY_TIMEOUT_S,
) -> None:
    """Wait until a name server serves a topic's route (that names a given broker address).

    Raises:
        PeerFailed: not in time; the text has the last answer.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        answer = _route_answer(name_server, topic)
        if '"code":0' in answer and (broker_address is None or f'"{broker_address}"' in answer):
            return
        if time.monotonic() > deadline:
            raise PeerFailed(
                f"name server {name_server}: no route of {topic!r}"
                f"{f' by {broker_address}' if broker_address else ''} in {timeout_s} s;"
                f" last answer: {answer}"
            )
        time.sleep(POLL_INTERVAL_S)


def _route_answer(name_server: str, topic: str) -> str:
    """Ask with a bare frame (this harness must not lean on what it tests): header and body text."""
    host, _, port = name_server.rpartition(":")
    header = json.dumps(
        {
            "code": _ROUTE_BY_TOPIC, "language": "PYTHON", "version": 399, "opaque": 1, "flag": 0,
            "extFields": {"topic": topic}, "serializeTypeCurrentRPC": "JSON",
        }
    ).encode()  # fmt: skip
    try:
        with (
            socket.create_connection((host, int(port)), timeout=_ROUTE_TIMEOUT_S) as connection,
            connection.makefile("rb") as stream,
        ):
            connection.sendall(struct.pack(">ii", 4 + len(header), len(header)) + header)
            (length,) = struct.unpack(">i", stream.read(4))
            return stream.read(length)[4:].decode(errors="replace")
    except (OSError, struct.error) as error:
        return f"{type(error).__name__}: {error}"


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the peers' own listeners do: a connection in TIME_WAIT does not make a port taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))  # 4.x brokers listen on every interface
        except OSError:
            return False
        return True


def _java_text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _started(process: JavaProcess | None) -> JavaProcess:
    if process is None:
        raise PeerFailed("not started yet: call start() first")
    return process
