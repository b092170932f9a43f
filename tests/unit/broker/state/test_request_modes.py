"""How groups get messages, as administrators set it."""

from pymq.broker.state.request_modes import RequestModes
from pymq.protocol.pop_bodies import GroupRequestMode


def mode(topic: str, group: str) -> GroupRequestMode:
    return GroupRequestMode(topic=topic, group=group)


def test_a_slave_that_has_the_same_has_the_same_digest() -> None:
    master, slave = RequestModes(), RequestModes()
    assert master.digest() == ""
    for topic, group in ("T", "g"), ("T", "h"), ("U", "g"):
        master.put(mode(topic, group))
    assert master.digest() != slave.digest()
    for topic, group in ("U", "g"), ("T", "h"), ("T", "g"):
        slave.put(mode(topic, group))
    assert master.digest() == slave.digest()
