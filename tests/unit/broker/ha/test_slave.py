"""When a slave's log may be read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import FakeClock, open_store, put_ok, record

from pymq.broker.config import BrokerConfig
from pymq.broker.ha.acting import Acting
from pymq.broker.ha.following import ClassicFollowing, EpochFollowing
from pymq.broker.ha.slave import Slave
from pymq.broker.slave_refusals import with_refusals
from pymq.errors import BrokerError
from pymq.protocol.codes import RequestCode, SinkRequest
from pymq.protocol.epoch_replication import EpochPush, Handshake
from pymq.protocol.epochs import Epoch, Epochs
from pymq.protocol.headers.replication import HaInfo
from pymq.store import MessageStore


class Known:
    """The epochs of the log."""

    epochs = Epochs((Epoch(1, 0),))

    def save(self, epochs: Epochs) -> None:
        self.epochs = epochs


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    return open_store(tmp_path, FakeClock())


def slave_of(store: MessageStore) -> Slave:
    following: Any = None
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731
    security: Any = None
    return Slave(
        store.replication,
        None,
        FakeClock(),
        nothing,
        security,
        heartbeat_s=1,
        silence_s=9,
        following=following,
        on_diverged=nothing,
    )


def test_what_is_not_confirmed_may_not_be_read(store: MessageStore) -> None:
    """The next master may lack it: what consumers have seen must not vanish."""
    put_ok(store, record())
    end = store.log_end
    slave = slave_of(store)
    slave._begun_end = store.replication.begin()
    slave.is_unsure = True
    epochs: Any = Known()
    following = EpochFollowing(Handshake(2, False, False), epochs)
    for confirmed_end, is_unsure in (end - 1, True), (end, False), (end - 1, False):
        push = EpochPush(end, Epoch(1, 0), confirmed_end, memoryview(b""))
        following.take([push], store.replication)
        slave._taken(0)
        assert slave.is_unsure == is_unsure


def test_without_epochs_it_may_be_read_at_once(store: MessageStore) -> None:
    put_ok(store, record())
    slave = slave_of(store)
    slave._begun_end = store.replication.begin()
    slave.is_unsure = True
    ClassicFollowing(wants_whole_log=True).take([], store.replication)
    slave._taken(0)
    assert not slave.is_unsure


def test_commits_are_refused_while_a_master_takes_over_what_is_kept_here(
    store: MessageStore,
) -> None:
    """It has asked for the offsets: what was acknowledged now would be replaced by those."""
    slave = slave_of(store)
    taken: list[str] = []
    handlers: Any = dict.fromkeys((*RequestCode, *SinkRequest), lambda request: taken.append("it"))
    config = BrokerConfig()
    commit: Any = with_refusals(handlers, config, slave, has_controller=False)[
        RequestCode.UPDATE_CONSUMER_OFFSET
    ]
    follow: Any = lambda *_: None  # noqa: E731
    acting = Acting(2, config.name, slave, follow, lambda: None)
    slave.is_acting = True
    commit(None)
    acting.told(HaInfo(ha_address="127.0.0.1:10912"))
    commit(None)  # it asks when this slave is connected
    connection: Any = object()
    slave._connection = connection
    with pytest.raises(BrokerError, match="is about to be online"):
        commit(None)
    slave._connection = None  # it is away again
    commit(None)
    assert len(taken) == 3
