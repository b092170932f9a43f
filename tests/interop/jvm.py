"""One JVM with the official client (and tools) of one RocketMQ version, called through py4j.

Python calls Java over one loopback socket per thread, and Java calls Python objects that
implement Java interfaces (listeners, callbacks) over the callback server. Calls into the JVM need
its random token; py4j's main class has none for the way back, which reaches only our listeners.
The JVM ends when its standard input closes, thus with this process.
"""

from __future__ import annotations

import collections
import itertools
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

from py4j.java_gateway import (
    CallbackServerParameters,
    GatewayParameters,
    JavaGateway,
    launch_gateway,
)
from tests.interop.jars import class_path, java_executable, py4j_jar
from tests.interop.processes import LOG_TAIL_CHARS, OPEN_MODULES, STOP_TIMEOUT_S, PeerFailed, guard

_LOGBACK_TEXT: Final = """<configuration>
  <appender name="err" class="ch.qos.logback.core.ConsoleAppender">
    <target>System.err</target>
    <encoder><pattern>%d %-5level %logger{20} %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="err"/></root>
</configuration>
"""
_OUTPUT_LINES: Final = 400


class JavaClient:
    """A running JVM; ``jvm`` is py4j's view of its classes, untyped by nature.

    Objects of ``java_client`` register themselves with ``on_close`` and are shut down with it.

    Args:
        version: one of ``jars.VERSIONS``.
        java_options: put after the harness's own, so that they win.

    Raises:
        PeerFailed: the JVM does not start.
    """

    def __init__(self, version: str, *, java_options: Sequence[str] = ()) -> None:
        self.version = version
        self.home = Path(tempfile.mkdtemp(prefix="pymq-java-client-"))
        (self.home / "logback.xml").write_text(_LOGBACK_TEXT)
        # The tools' commands set up logging again, from here.
        (self.home / "conf").mkdir()
        (self.home / "conf" / "logback_tools.xml").write_text(_LOGBACK_TEXT)
        self._output: collections.deque[str] = collections.deque(maxlen=_OUTPUT_LINES)
        self._numbers = itertools.count()
        self._closers: dict[int, Callable[[], None]] = {}
        self._lock = threading.Lock()
        try:
            port, token, self._process = launch_gateway(
                jarpath=str(py4j_jar()),
                classpath=class_path(version),
                javaopts=[*self._options(), *java_options],
                java_path=str(java_executable()),
                cwd=str(self.home),
                die_on_exit=True,
                create_new_process_group=True,
                enable_auth=True,
                redirect_stdout=self._output,
                redirect_stderr=self._output,
                return_proc=True,
            )
        except ValueError as error:  # py4j found something else where the port should be
            raise PeerFailed(f"JVM for client {version} did not start: {error}") from error
        guard.watch(self._process.pid)
        self.gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=False),
            callback_server_parameters=CallbackServerParameters(
                port=0, daemonize=True, daemonize_connections=True
            ),
        )
        self.jvm: Any = self.gateway.jvm
        callback_port = self.gateway.get_callback_server().get_listening_port()
        self.gateway.java_gateway_server.resetCallbackClient(
            self.jvm.java.net.InetAddress.getByName("127.0.0.1"), callback_port
        )

    @property
    def pid(self) -> int:
        """Process id of the JVM."""
        return int(self._process.pid)

    def instance_name(self) -> str:
        """Return a client instance name not used before in this JVM.

        Without it, all producers and consumers of one JVM (4.5.1) share one connection object, and
        with it the name server list of whichever came first.
        """
        return f"interop-{self.pid}-{next(self._numbers)}"

    def moved_class(self, *, before_5: str, since_5: str) -> Any:
        """Return a class that 5.0 moved; both names count from ``org.apache.rocketmq``."""
        found: Any = self.jvm.org.apache.rocketmq
        for name in (before_5 if self.version.startswith("4.") else since_5).split("."):
            found = getattr(found, name)
        return found

    def on_close(self, close: Callable[[], None]) -> Callable[[], None]:
        """Have ``close`` called with this JVM; the result drops that promise again."""
        number = next(self._numbers)
        with self._lock:
            self._closers[number] = close

        def forget() -> None:
            with self._lock:
                self._closers.pop(number, None)

        return forget

    def array_list(self, items: Sequence[Any]) -> Any:
        """Return a ``java.util.ArrayList`` of Java objects or Python scalars."""
        result = self.jvm.java.util.ArrayList()
        for item in items:
            result.add(item)
        return result

    def output(self) -> str:
        """Return the end of what the JVM wrote (py4j's deque has the newest line first)."""
        return "".join(reversed(self._output))[-LOG_TAIL_CHARS:]

    def close(self) -> None:
        """Shut down what is still open, newest first, then the JVM."""
        with self._lock:
            closers = list(reversed(self._closers.values()))
        try:
            for close in closers:
                close()
        finally:
            self.gateway.shutdown()
            self._process.stdin.close()  # die-on-broken-pipe
            try:
                self._process.wait(STOP_TIMEOUT_S)
            finally:
                self._process.kill()
                guard.forget(self.pid)
                shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _options(self) -> list[str]:
        return [
            "-Xms64m", "-Xmx768m", "-XX:+UseSerialGC",
            *OPEN_MODULES,
            f"-Duser.home={self.home}",
            f"-Djava.io.tmpdir={self.home}",
            f"-Drocketmq.home.dir={self.home}",
            # Whoever listens here takes connections at once; a JVM may see that late.
            "-Dcom.rocketmq.remoting.client.connect.timeout=20000",
            # Instead of 20 s: whose first round found no route has to wait for the next one.
            "-Drocketmq.client.rebalance.waitInterval=4000",
            f"-Drocketmq.client.logRoot={self.home / 'logs'}",
            f"-Dlogback.configurationFile={self.home / 'logback.xml'}",
            "-Drocketmq.client.localOffsetStoreDir=" + str(self.home / "offsets"),
        ]  # fmt: skip
