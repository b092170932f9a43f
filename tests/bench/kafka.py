"""An Apache Kafka broker as a child process on loopback: KRaft, one node, 1 GiB of heap."""

import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Self

from tests.interop.jars import KAFKA, class_path, java_executable
from tests.interop.peers import free_port
from tests.interop.processes import JavaProcess, PeerFailed

READY_TIMEOUT_S = 60.0
_HEAP = ("-Xms1g", "-Xmx1g")
_LOG4J = """log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
"""


class Kafka:
    """A broker that makes topics of ``partitions`` partitions when they are written to."""

    def __init__(self, partitions: int) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="pymq-bench-kafka-"))
        port = free_port(0, 1)
        self.address = f"127.0.0.1:{port}"
        self._properties = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{port + 1}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{port + 1}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self._home / "logs",
            "num.partitions": partitions,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
        }
        self._process: JavaProcess | None = None

    def __enter__(self) -> Self:
        """Start it.

        Raises:
            PeerFailed: it does not listen in time; the text ends with its log.
        """
        properties = self._home / "server.properties"
        properties.write_text(
            "".join(f"{key}={value}\n" for key, value in self._properties.items())
        )
        (self._home / "log4j.properties").write_text(_LOG4J)
        jars = class_path(KAFKA)
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        subprocess.run(
            [
                str(java_executable()), "-cp", jars, "kafka.tools.StorageTool",
                "format", "-t", cluster, "-c", str(properties),
            ],
            check=True, capture_output=True,
        )  # fmt: skip
        self._process = JavaProcess(
            f"Kafka broker at {self.address}",
            self._home,
            [
                *_HEAP, f"-Dlog4j.configuration=file:{self._home}/log4j.properties", "-cp", jars,
                "kafka.Kafka", str(properties),
            ],
            {},
        )  # fmt: skip
        host, port = self.address.split(":")
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while True:
            try:
                socket.create_connection((host, int(port)), 1).close()
            except OSError:
                if not self._process.running or time.monotonic() > deadline_s:
                    text = self._process.output()[-2000:]
                    self.__exit__()
                    raise PeerFailed(f"Kafka does not listen at {self.address}\n{text}") from None
                time.sleep(0.1)
            else:
                return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            if any(error):
                print(f"the end of Kafka's log:\n{self._process.output()[-2000:]}")
            self._process.kill()
        shutil.rmtree(self._home, ignore_errors=True)
