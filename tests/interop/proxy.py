"""The official proxy as a child process on loopback."""

from __future__ import annotations

import json
from typing import Self

from tests.interop.jars import PROXY, class_path
from tests.interop.peers import READY_TIMEOUT_S, Home, free_port
from tests.interop.processes import JavaProcess


class RealProxy:
    """The official proxy in cluster mode: gRPC clients reach the brokers of a cluster through it.

    Args:
        name_server_address: ``host:port`` of the cluster's name server.
        cluster_name: the cluster.
    """

    def __init__(self, name_server_address: str, cluster_name: str) -> None:
        self.port, remoting_port = free_port(0), free_port(0)
        self.address = f"127.0.0.1:{self.port}"
        self._home = Home("proxy")
        settings = {
            "rocketMQClusterName": cluster_name,
            "proxyClusterName": cluster_name,
            "namesrvAddr": name_server_address,
            "grpcServerPort": self.port,
            "remotingListenPort": remoting_port,
            "localServeAddr": "127.0.0.1",
            "proxyMode": "CLUSTER",
        }
        self._config = self._home.path / "conf" / "rmq-proxy.json"
        self._config.write_text(json.dumps(settings))
        self._process: JavaProcess | None = None

    def __enter__(self) -> Self:
        self._process = JavaProcess(
            f"proxy at {self.address}",
            self._home.path,
            [
                "-Xms128m", "-Xmx512m", "-cp", class_path(PROXY),
                "org.apache.rocketmq.proxy.ProxyStartup", "-pc", str(self._config),
            ],
            {"RMQ_PROXY_HOME": str(self._home.path)},
        )  # fmt: skip
        self._process.wait_for_text("startup successfully", timeout_s=READY_TIMEOUT_S)
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.kill()
        self._home.remove()
