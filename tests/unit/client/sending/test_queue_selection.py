"""Which queue a send goes to."""

import pytest

from pymq.client.sending.queue_selection import AvoidedBrokers, TopicQueues
from pymq.client.sending.send_template import SendTemplate
from pymq.errors import LocalProtocolError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.hashes import java_hash


def queues(*names: str) -> TopicQueues:
    templates = []
    for name in names:
        broker, _, number = name.partition(":")
        queue = MessageQueue("T", broker, int(number))
        templates.append(SendTemplate(queue, "h:1", group="G", default_topic_queue_count=4))
    return TopicQueues(templates)


def name(template: SendTemplate) -> str:
    return f"{template.queue.broker_name}:{template.queue.queue_id}"


def test_every_queue_has_its_turn() -> None:
    some = queues("a:0", "a:1", "b:0")
    assert [name(some.next(())) for _ in range(6)] == ["a:1", "b:0", "a:0"] * 2


def test_a_broker_that_failed_gets_nothing_while_another_can_take_it() -> None:
    some = queues("a:0", "a:1", "b:0", "b:1")
    assert {name(some.next({"a"})) for _ in range(8)} == {"b:0", "b:1"}
    assert some.has_other({"a"}) and not some.has_other({"a", "b"})
    assert {name(some.next({"a", "b"})) for _ in range(8)} == {"a:0", "a:1", "b:0", "b:1"}


def test_a_key_goes_where_a_java_producer_sends_it() -> None:
    some = queues("a:0", "a:1", "b:0")
    assert java_hash("polygenelubricants") == -(1 << 31)  # Math.abs would stay negative
    for key in ("", "a", "k1", "标签", "polygenelubricants"):
        # SelectMessageQueueByHash: value = hashCode % size; if (value < 0) value = abs(value)
        value = java_hash(key)
        remainder = abs(value) % 3
        assert some.of_key(key) is some.templates[remainder]


def test_a_certain_queue_must_exist() -> None:
    some = queues("a:0", "b:7")
    assert name(some.exactly(MessageQueue("T", "b", 7))) == "b:7"
    with pytest.raises(LocalProtocolError, match="queues of its topic are a:0, b:7"):
        some.exactly(MessageQueue("T", "b", 8))


def test_brokers_are_forgiven_when_their_time_is_over() -> None:
    avoided = AvoidedBrokers()
    avoided.add("a", 10.0)
    avoided.add("b", 20.0)
    avoided.expire(9.9)
    assert avoided.names == {"a", "b"}
    avoided.add("a", 15.0)
    avoided.expire(12.0)
    assert avoided.names == {"a", "b"}
    avoided.expire(15.0)
    assert avoided.names == {"b"}
