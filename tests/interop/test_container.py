"""pymq in a container, with a real engine: our client and the official Java one on the host."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.administration import admin_of
from tests.cluster.test_testing_docs import WITH_ENGINE, files, run_in
from tests.handling import handle_until
from tests.interop.engine import NoEngine, engine, remove_image
from tests.interop.java_client import JavaProducer, JavaPushConsumer
from tests.interop.java_scenarios import ClientFactory

from pymq import BlockingClient, Message, blocking
from pymq.errors import ConfigurationError

if TYPE_CHECKING:
    from pymq.testing.containers import PymqContainer

pytestmark = pytest.mark.interop

IMAGE = "pymq-under-test"


@pytest.fixture(scope="module")
def container_class() -> Iterator[type[PymqContainer]]:
    """The class, once there are an engine and an image."""
    try:
        with engine("image", IMAGE) as environment, pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            # It reads the environment when it is imported.
            yield importlib.import_module("pymq.testing.containers").PymqContainer
            remove_image(IMAGE, environment)
    except NoEngine as error:
        pytest.skip(f"no container can be started: {error}")


def test_our_client_reaches_it_at_the_first_try(container_class: type[PymqContainer]) -> None:
    with container_class(IMAGE) as container:
        with blocking.Producer(container.name_server, retries=0) as producer:
            sent = producer.send(Message("T", b"x"), deadline_s=60)
        with BlockingClient(container.name_server) as client:
            (address,) = admin_of(client).brokers.masters().values()
            assert address == container.broker_address
            assert client.bounds([sent.queue]) == {sent.queue: (0, 1)}
        consumer = blocking.Consumer(container.name_server, "g", from_where="earliest")
        seen: list[bytes] = []
        with consumer.subscribe("T"):
            handle_until(consumer, lambda message: seen.append(message.body), lambda: seen)
        assert seen == [b"x"]


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_the_official_client_reaches_it_at_the_first_try(
    container_class: type[PymqContainer], java_client: ClientFactory, version: str
) -> None:
    client = java_client(version)
    with container_class(IMAGE) as container:
        with (
            JavaProducer(client, "producers", container.name_server) as producer,
            blocking.Producer(container.name_server) as ours,
        ):
            producer.send("T", b"from Java", tags="a")
            ours.send(Message("T", b"from Python", tags="a"))
        with JavaPushConsumer(client, "consumers", container.name_server, "T") as consumer:
            found = consumer.wait_count(2)
        assert {message.body for message in found} == {b"from Java", b"from Python"}


def test_two_of_them_and_nothing_is_left(container_class: type[PymqContainer]) -> None:
    with container_class(IMAGE) as one, container_class(IMAGE) as two:
        assert one.name_server != two.name_server
        assert one.broker_address != two.broker_address
        for number, container in enumerate((one, two)):
            with blocking.Producer(container.name_server) as producer:
                producer.send(Message(f"T{number}", b"x"))
            with BlockingClient(container.name_server) as client:
                assert admin_of(client).topics.names() == [f"T{number}"]
    left = subprocess.run(
        ["docker", "ps", "--all", "--quiet", "--filter", f"ancestor={IMAGE}"],
        env=os.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert left.stdout == ""


def test_it_runs_as_nobody_and_stops_at_once(container_class: type[PymqContainer]) -> None:
    with container_class(IMAGE) as container:
        assert container.exec(["id", "-u"]).output.strip() == b"10911"
        began = time.monotonic()
        container.get_wrapped_container().stop(timeout=120)
        assert time.monotonic() - began < 60  # and was not killed, which is another status
        assert container.get_wrapped_container().wait()["StatusCode"] == 0


def test_the_snippet_of_the_documentation(
    container_class: type[PymqContainer], tmp_path: Path
) -> None:
    text = files()[WITH_ENGINE].replace("PymqContainer()", f"PymqContainer({IMAGE!r})")
    assert IMAGE in text
    (tmp_path / WITH_ENGINE).write_text(text)
    out = run_in(tmp_path, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert "1 passed" in out, out


def test_what_is_missing_is_named(container_class: type[PymqContainer]) -> None:
    with pytest.raises(ConfigurationError, match=r"no image .*: make it with ./build.sh image"):
        container_class("pymq-that-there-is-not:1").start()
    with pytest.raises(ConfigurationError, match="expected an IP address"):
        container_class(IMAGE, advertise="127.0.0.1.").start()
