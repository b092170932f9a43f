"""What threads hand over is sent as it was then, whatever they do with their objects later."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pymq import Message, SendHook, blocking
from pymq.errors import ClientClosed, ConfigurationError, LocalProtocolError
from pymq.testing import Cluster

#: For what succeeds, however busy the machine.
LIMITS: dict[str, Any] = {"timeout_s": 60.0, "deadline_s": 60.0}
COUNT = 500


@pytest.fixture(params=["producer", "batcher"])
def face(
    request: pytest.FixtureRequest, pymq_cluster: Cluster
) -> Iterator[blocking.Producer | blocking.Batcher]:
    with blocking.Producer(pymq_cluster.name_server, **LIMITS) as producer:
        if request.param == "producer":
            yield producer
        else:
            with blocking.Batcher(producer) as batcher:
                yield batcher


def test_a_message_that_is_used_again_is_sent_as_it_was(
    face: blocking.Producer | blocking.Batcher, pymq_cluster: Cluster
) -> None:
    message = Message("T", b"", keys=[""], properties={"n": ""})
    futures = []
    for number in range(COUNT):
        message.body = b"%d" % number
        message.tags = f"tag-{number % 7}"
        assert isinstance(message.keys, list)
        message.keys[0] = f"key-{number}"
        message.properties["n"] = str(number)
        futures.append(face.send_nowait(message))
    message.topic = "elsewhere"
    for future in futures:
        future.result(60)
    found = {int(one.body): one for one in pymq_cluster.messages("T")}
    assert sorted(found) == list(range(COUNT))
    for number, one in found.items():
        assert one.tags == f"tag-{number % 7}"
        assert one.keys == [f"key-{number}"]
        assert one.properties["n"] == str(number)


@pytest.mark.parametrize("view", [bytearray, memoryview])
def test_a_buffer_that_is_used_again_is_sent_as_it_was(
    face: blocking.Producer | blocking.Batcher,
    pymq_cluster: Cluster,
    view: Callable[[bytearray], Any],
) -> None:
    body = bytearray(4)
    futures = []
    for number in range(COUNT):
        body[:] = b"%04d" % number
        sent: Any = body if view is bytearray else view(body)
        futures.append(face.send_nowait(Message("T", sent)))
    body[:] = b"late"
    for future in futures:
        future.result(60)
    stored = sorted(int(one.body) for one in pymq_cluster.messages("T"))
    assert stored == list(range(COUNT))


class Noted(Message):
    """A message of somebody who needs to know more of it."""

    __slots__ = ("note",)

    note: str


def test_hooks_see_the_message_as_it_was_with_what_its_own_class_adds(
    pymq_cluster: Cluster,
) -> None:
    seen = []

    class Hook(SendHook):
        def before(self, messages: Any) -> None:
            for one in messages:
                seen.append(one.note)
                one.body = one.body.encode()

    with blocking.Producer(pymq_cluster.name_server, hooks=[Hook()], **LIMITS) as producer:
        message = Noted("T", "a text, which the hook encodes")  # type: ignore[arg-type]
        futures = []
        for number in range(20):
            message.note = str(number)
            futures.append(producer.send_nowait(message))
        for future in futures:
            future.result(60)
    assert seen == [str(number) for number in range(20)]


BAD: list[tuple[Any, str]] = [
    ("text", "expected a Message"),
    (Message("T", b""), "body of 0 B"),
    (Message("T", "text"), "body is a str"),  # type: ignore[arg-type]
    (Message("T", bytes(5 << 20)), "body_bytes_max"),
    (Message("bad topic", b"x"), "topic"),
    (Message([], b"x"), "topic"),  # type: ignore[arg-type]
    (Message("T", b"x", flag=1 << 40), "32-bit"),
    (Message("T", b"x", tags="a || b"), "one tag"),
    (Message("T", b"x", tags=5), "tags is a int"),  # type: ignore[arg-type]
    (Message("T", b"x", keys=5), "keys a str or several"),  # type: ignore[arg-type]
    (Message("T", b"x", keys=["a b"]), "without blanks"),
    (Message("T", b"x", properties={"a": 5}), "expected two strings"),  # type: ignore[dict-item]
    (Message("T", b"x", properties="text"), "properties"),  # type: ignore[arg-type]
    (Message("T", b"x", properties={"KEYS": "k"}), "belongs to the system"),
    (Message("T", b"x", delay_s=-1.0), "delay_s"),
    (Message("T", b"x", delay_level=-1), "delay_level"),
]


@pytest.mark.parametrize("bad, text", BAD)
def test_what_cannot_be_sent_is_refused_at_once(
    face: blocking.Producer | blocking.Batcher, bad: Any, text: str
) -> None:
    with pytest.raises(LocalProtocolError, match=text):
        face.send_nowait(bad)


def test_arguments_of_a_wrong_type_are_refused_at_once(
    face: blocking.Producer | blocking.Batcher,
) -> None:
    for wrong in ({"queue": 5}, {"selector": 5}, {"sharding_key": 5}):
        with pytest.raises(LocalProtocolError, match=next(iter(wrong))):
            face.send_nowait(Message("T", b"x"), **wrong)  # type: ignore[arg-type]
    if isinstance(face, blocking.Producer):
        with pytest.raises(ConfigurationError, match="deadline_s"):
            face.send_nowait(Message("T", b"x"), deadline_s="soon")  # type: ignore[arg-type]
        assert face.in_flight_count == 0


def test_a_closed_batcher_refuses_at_once(pymq_cluster: Cluster) -> None:
    with blocking.Producer(pymq_cluster.name_server, **LIMITS) as producer:
        with blocking.Batcher(producer) as batcher:
            batcher.send(Message("T", b"x"))
        with pytest.raises(ClientClosed, match="the batcher is closed"):
            batcher.send_nowait(Message("T", b"x"))
