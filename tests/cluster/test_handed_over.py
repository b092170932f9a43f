"""What threads hand over is sent as it was then, whatever they do with their objects later."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.cluster.running import LIMITS

from pymq import Message, MessageQueue, SendHook, blocking
from pymq.client.sending import send_encoding
from pymq.errors import ClientClosed, ConfigurationError, LocalProtocolError
from pymq.testing import Cluster, wait_until

COUNT = 500


@pytest.fixture(params=["producer", "batcher"])
def face(
    request: pytest.FixtureRequest, cluster: Cluster
) -> Iterator[blocking.Producer | blocking.Batcher]:
    with blocking.Producer(cluster.name_server, **LIMITS) as producer:
        if request.param == "producer":
            yield producer
        else:
            with blocking.Batcher(producer) as batcher:
                yield batcher


def test_a_message_that_is_used_again_is_sent_as_it_was(
    face: blocking.Producer | blocking.Batcher, cluster: Cluster, queue: MessageQueue
) -> None:
    message = Message(queue.topic, b"", keys=[""], properties={"n": ""})
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
    found = {int(one.body): one for one in cluster.messages(queue.topic)}
    assert sorted(found) == list(range(COUNT))
    for number, one in found.items():
        assert one.tags == f"tag-{number % 7}"
        assert one.keys == [f"key-{number}"]
        assert one.properties["n"] == str(number)


@pytest.mark.parametrize("view", [bytearray, memoryview])
def test_a_buffer_that_is_used_again_is_sent_as_it_was(
    face: blocking.Producer | blocking.Batcher,
    cluster: Cluster,
    queue: MessageQueue,
    view: Callable[[bytearray], Any],
) -> None:
    body = bytearray(4)
    futures = []
    for number in range(COUNT):
        body[:] = b"%04d" % number
        sent: Any = body if view is bytearray else view(body)
        futures.append(face.send_nowait(Message(queue.topic, sent)))
    body[:] = b"late"
    for future in futures:
        future.result(60)
    stored = sorted(int(one.body) for one in cluster.messages(queue.topic))
    assert stored == list(range(COUNT))


def test_a_delayed_message_is_sent_as_it_was(
    face: blocking.Producer | blocking.Batcher, cluster: Cluster, queue: MessageQueue
) -> None:
    """No batch takes one."""
    message = Message(queue.topic, b"as it was", properties={"n": "1"}, delay_level=1)
    sent = face.send_nowait(message)
    message.body, message.delay_level = b"late", 18
    message.properties["n"] = "2"
    sent.result(60)
    wait_until(lambda: cluster.messages(queue.topic), timeout_s=60)
    (one,) = cluster.messages(queue.topic)
    assert (one.body, one.properties["n"]) == (b"as it was", "1")


@pytest.mark.parametrize("delay_level", [0, 1])
def test_a_message_is_encoded_once_by_who_hands_it_over(
    face: blocking.Producer | blocking.Batcher,
    queue: MessageQueue,
    monkeypatch: pytest.MonkeyPatch,
    delay_level: int,
) -> None:
    threads: list[threading.Thread] = []

    def noted(encode: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            threads.append(threading.current_thread())
            return encode(*args, **kwargs)

        return call

    for name in ("properties_json", "encode_in_batch"):
        monkeypatch.setattr(send_encoding, name, noted(getattr(send_encoding, name)))
    message = Message(queue.topic, b"x", keys=["k"], properties={"n": "1"}, delay_level=delay_level)
    for future in [face.send_nowait(message) for _ in range(3)]:
        future.result(60)
    assert threads == [threading.current_thread()] * 3


class Noted(Message):
    """A message of somebody who needs to know more of it."""

    __slots__ = ("note",)

    note: str


def test_hooks_see_the_message_as_it_was_with_what_its_own_class_adds(cluster: Cluster) -> None:
    seen = []

    class Hook(SendHook):
        def before(self, messages: Any) -> None:
            for one in messages:
                seen.append(one.note)
                one.body = one.body.encode()

    with blocking.Producer(cluster.name_server, hooks=[Hook()], **LIMITS) as producer:
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
    (Message("T", b"x", keys=5), "keys is 5, expected a str or several"),  # type: ignore[arg-type]
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


def test_a_closed_batcher_refuses_at_once(cluster: Cluster) -> None:
    with blocking.Producer(cluster.name_server, **LIMITS) as producer:
        with blocking.Batcher(producer) as batcher:
            batcher.send(Message("T", b"x"))
        with pytest.raises(ClientClosed, match="the batcher is closed"):
            batcher.send_nowait(Message("T", b"x"))
