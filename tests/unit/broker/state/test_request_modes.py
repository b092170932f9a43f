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


def test_what_is_deleted_takes_its_modes_with_it() -> None:
    modes = RequestModes()
    changes: list[str] = []
    for topic, group in ("T", "g"), ("T", "h"), ("U", "g"):
        modes.put(mode(topic, group))
    modes.on_change = lambda: changes.append(modes.digest())
    modes.forget_topic("other")
    modes.forget_group("other")
    assert not changes
    modes.forget_group("g")
    assert modes.find("T", "g") is None and modes.find("U", "g") is None
    assert modes.find("T", "h") == mode("T", "h")
    modes.forget_topic("T")
    assert modes.find("T", "h") is None
    assert len(changes) == 2 and changes[-1] == ""
