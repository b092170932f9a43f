"""pymq in a container, for testcontainers: ``pip install 'pymq-rocketmq[containers]'``.

::

    from pymq.testing.containers import PymqContainer

    with PymqContainer() as container:
        producer = Producer(container.name_server)

Clients of RocketMQ ask a name server where the brokers are, and connect to what the broker has
told it. So the broker's port is the same one inside and outside, a free one of the host, and the
broker tells the address of the host. The image is made by ``./build.sh image``.
"""

import socket
import threading
import time
from typing import Any, Self

from pymq import extras
from pymq.client.threaded.admin import Admin
from pymq.errors import ConfigurationError, ConnectionFailed, RequestTimeout
from pymq.protocol.addresses import join_address

extras.require("testcontainers", by="pymq.testing.containers")

from testcontainers.core.container import DockerContainer  # noqa: E402

__all__ = ["PymqContainer"]

#: Of the name server, in the container.
NAMESRV_PORT = 9876
START_S = 60.0
_POLL_S = 0.05
#: Somebody else may take the port that was free.
_PORT_TRIES = 5


class PymqContainer(DockerContainer):
    """A name server and a broker in a container, which keep nothing.

    Args:
        image: made by ``./build.sh image``. Only a name with a registry, or with another ``/``, is
            pulled.
        advertise: IP address at which clients reach the host of the engine; by default what
            testcontainers says: this machine, or the one of ``DOCKER_HOST``.
        **settings: passed on to ``DockerContainer``.
    """

    def __init__(
        self, image: str = "pymq:latest", *, advertise: str | None = None, **settings: Any
    ) -> None:
        super().__init__(image, **settings)
        self._advertise = advertise
        self._broker_port = 0

    def start(self) -> Self:
        """Start it; return when a client that runs here reaches the broker.

        Raises:
            ConfigurationError: there is no such image, or it ended at once.
            RequestTimeout: it was not ready after ``START_S``.
        """
        from docker.errors import APIError

        self._check_image()
        for left in reversed(range(_PORT_TRIES)):
            try:
                self._start()
                break
            except APIError as error:
                is_taken = "already allocated" in str(error) or "already in use" in str(error)
                if not (is_taken and left):
                    raise
                self._remove()
        try:
            self._wait_ready()
        except BaseException:
            self._remove()
            raise
        return self

    def _check_image(self) -> None:
        """Refuse to pull an image that is called like ours from a public registry."""
        from docker.errors import ImageNotFound

        if "/" in self.image:
            return
        try:
            self.get_docker_client().client.images.get(self.image)
        except ImageNotFound as error:
            raise ConfigurationError(
                f"no image {self.image}: make it with ./build.sh image, or name one with the "
                "registry that it is to be pulled from"
            ) from error

    def _start(self) -> None:
        host = self._advertise or socket.gethostbyname(self.get_docker_client().host())
        local = "127.0.0.1" if host.startswith("127.") else "0.0.0.0"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._broker_port = free.getsockname()[1]
        # Two addresses and a port, which ``with_bind_ports`` does not take.
        ports: dict[str, Any] = {
            f"{NAMESRV_PORT}/tcp": (local, None),
            f"{self._broker_port}/tcp": (local, self._broker_port),
        }
        self.ports = ports
        self.tmpfs = {"/tmp": ""}
        self._command = [
            *("up", "--memory", "--bind", "0.0.0.0", "--advertise", host),
            *("--namesrv-port", str(NAMESRV_PORT), "--broker-port", str(self._broker_port)),
        ]
        super().start()

    def _remove(self) -> None:
        container, self._container = self._container, None
        if container is not None:
            container.remove(force=True, v=True)

    def _wait_ready(self) -> None:
        deadline_s, pause = time.monotonic() + START_S, threading.Event()
        lacking = "it has not said that it is ready"
        while time.monotonic() < deadline_s:
            container = self.get_wrapped_container()
            container.reload()
            out, err = self.get_logs()
            if container.status in ("exited", "dead"):
                raise ConfigurationError(f"{self.image} ended: {(err or out).decode().strip()}")
            if b"ready" in out:
                try:
                    self._reach()
                    return
                except (ConnectionFailed, RequestTimeout) as error:
                    lacking = str(error)
            pause.wait(_POLL_S)
        raise RequestTimeout(f"{self.image} was not ready after {START_S:g} s: {lacking}")

    def _reach(self) -> None:
        """Ask the broker something, at the address that it advertises.

        Raises:
            PymqError: it does not answer.
        """
        with Admin(self.name_server, timeout_s=3.0) as admin:
            masters = admin.brokers.masters()
            if not masters:
                raise ConnectionFailed(f"{self.name_server}: no broker has registered yet")
            for address in masters.values():
                admin.brokers.state(address)

    @property
    def name_server(self) -> str:
        """``host:port`` of the name server, for clients on this machine."""
        return join_address(self._host, int(self.get_exposed_port(NAMESRV_PORT)))

    @property
    def broker_address(self) -> str:
        """``host:port`` at which the broker is, for everybody whom it tells so."""
        return join_address(self._host, self._broker_port)

    @property
    def _host(self) -> str:
        return self._advertise or socket.gethostbyname(self.get_docker_client().host())
