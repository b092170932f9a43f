"""Fixtures for tests with real Java peers; everything is started once per version and run.

Mark such tests ``@pytest.mark.interop``. Without Java or the jars they are skipped, with the
reason; where ``CI`` is set they fail.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import pytest
from _pytest.mark import ParameterSet
from tests.interop.jars import JarsUnavailable, class_path, why_unavailable
from tests.interop.java_admin import JavaAdmin
from tests.interop.jvm import JavaClient
from tests.interop.peers import RealBroker, RealNameServer

from pymq.client.administration.admin import Admin
from pymq.client.consuming.consumer import Consumer
from pymq.client.pulling.pull_consumer import PullConsumer
from pymq.client.pulling.simple_consumer import SimpleConsumer
from pymq.client.sending.producer import Producer
from pymq.client.sockets.blocking_client import BlockingClient

#: What is answered within milliseconds on a quiet machine may take this long on a busy one.
PATIENCE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class RealCluster:
    """One official name server and one official broker of the same version."""

    version: str
    name_server: RealNameServer
    broker: RealBroker


def require_peers(version: str) -> None:
    """Skip the test (fail it in CI) when the peers of a version cannot run here."""
    reason = why_unavailable(version)
    if reason is None:
        try:
            class_path(version)
            return
        except JarsUnavailable as error:
            reason = str(error)
    if os.environ.get("CI"):
        pytest.fail(f"CI must have the Java peers of RocketMQ {version}: {reason}", pytrace=False)
    pytest.skip(f"no Java peers of RocketMQ {version}: {reason}")


def some(
    combinations: Iterable[tuple[str, ...]],
    *always: tuple[str, ...],
    turns: Mapping[tuple[str, ...], pytest.MarkDecorator] = MappingProxyType({}),
) -> list[ParameterSet]:
    """Return combinations of parameters; of most of them, PYMQ_GOLDEN decides whether they run.

    Args:
        combinations: all.
        always: those that run always.
        turns: those that run by turns, and their marks.
    """
    rest = pytest.mark.skipif(
        os.environ.get("PYMQ_GOLDEN") != "all", reason="PYMQ_GOLDEN=all runs it, too"
    )
    return [
        pytest.param(*one, marks=[] if one in always else [turns.get(one, rest)])
        for one in combinations
    ]


@pytest.fixture(autouse=True, scope="module")
def patient_clients() -> Iterator[None]:
    """Give our clients more time for each answer than by default.

    An official broker that stalls answers all the same, and one that is dead is known at once.
    """
    with pytest.MonkeyPatch.context() as patch:
        for client in (Admin, BlockingClient, Consumer, Producer, PullConsumer, SimpleConsumer):
            patch.setitem(_defaults(client), "timeout_s", PATIENCE_S)
        patch.setitem(_defaults(BlockingClient), "read_deadline_s", 2 * PATIENCE_S)
        patch.setitem(_defaults(Producer), "deadline_s", 2 * PATIENCE_S)
        yield


def _defaults(client: type) -> dict[str, object]:
    """Return the default arguments of a client."""
    defaults: dict[str, object] | None = client.__init__.__kwdefaults__  # type: ignore[misc]
    assert defaults is not None
    return defaults


@pytest.fixture(scope="session")
def java_client() -> Iterator[Callable[[str], JavaClient]]:
    """Return ``java_client(version)``: the JVM with that official client."""
    clients: dict[str, JavaClient] = {}
    with ExitStack() as stack:

        def client(version: str) -> JavaClient:
            if version not in clients:
                require_peers(version)
                clients[version] = stack.enter_context(JavaClient(version))
            return clients[version]

        yield client


@pytest.fixture(scope="session")
def real_cluster() -> Iterator[Callable[[str], RealCluster]]:
    """Return ``real_cluster(version)``: shared by all tests, so use topics of your own."""
    clusters: dict[str, RealCluster] = {}
    with ExitStack() as stack:

        def cluster(version: str) -> RealCluster:
            if version not in clusters:
                require_peers(version)
                name_server = stack.enter_context(RealNameServer(version))
                broker = stack.enter_context(RealBroker(version, [name_server.address]))
                clusters[version] = RealCluster(version, name_server, broker)
            return clusters[version]

        yield cluster


@pytest.fixture(scope="session")
def java_admin(
    java_client: Callable[[str], JavaClient],
) -> Iterator[Callable[[str, str], JavaAdmin]]:
    """Return ``java_admin(client_version, name_server_address)``."""
    admins: dict[tuple[str, str], JavaAdmin] = {}
    with ExitStack() as stack:

        def admin(version: str, name_server: str) -> JavaAdmin:
            key = (version, name_server)
            if key not in admins:
                client = java_client(version)
                admins[key] = stack.enter_context(JavaAdmin(client, name_server))
            return admins[key]

        yield admin
