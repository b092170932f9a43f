"""Keys of messages: only a blank divides them, as in RocketMQ; other spaces belong to a key."""

import pytest
from tests.cluster.scenarios import TIMEOUT_S

from pymq import Message, blocking
from pymq.testing import Cluster


@pytest.mark.parametrize("keys", [["a\u3000b", "c\td", "e"], " a\u3000b  c\td e"])
def test_keys_with_other_spaces_come_back_and_are_found(
    pymq_cluster: Cluster, keys: str | list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pymq.broker.handlers.query.INDEX_WAIT_S", TIMEOUT_S)
    name_server = pymq_cluster.name_server
    with (
        blocking.Producer(name_server, timeout_s=TIMEOUT_S) as producer,
        blocking.Admin(name_server, timeout_s=TIMEOUT_S) as admin,
    ):
        sent = producer.send(Message("T", b"x", keys=keys)).message_id
        (message,) = pymq_cluster.messages("T")
        assert message.keys == ["a\u3000b", "c\td", "e"]
        for key in message.keys:
            assert [one.message_id for one in admin.messages.by_key("T", key)] == [sent]
        assert admin.messages.by_key("T", "b") == []
