"""Who is in which group, as heartbeats and ends of connections tell."""

import pytest
from tests.unit.net.connections import FakeConnection

from pymq.broker.state.clients import Client, ClientTable
from pymq.clock import Clock
from pymq.protocol.bodies import ConsumerData, ConsumeType, MessageModel, Subscription


class Time(Clock):
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s


class Table(ClientTable):
    """A table with short ways to ask it, and what it told.

    Attributes:
        told: groups whose members were to be told of a change.
    """

    def __init__(self) -> None:
        self.time = Time()
        super().__init__(self.time, expiry_s=120.0)
        self.told: list[str] = []
        self.on_members_changed = self.told.append

    def beat(
        self,
        connection: FakeConnection,
        client_id: str,
        *topics: str,
        group: str = "g",
        model: str = MessageModel.CLUSTERING,
        version: int = 1,
        kind: str = ConsumeType.PUSH,
        fingerprint: int = 0,
        without: bool = False,
        notifies: bool = True,
    ) -> bool:
        topics_and_tags = [topic.partition(":")[::2] for topic in topics]
        data = ConsumerData(
            group=group,
            consume_type=kind,
            message_model=model,
            subscriptions=[
                Subscription.of_tags(topic, tags or "*", version) for topic, tags in topics_and_tags
            ],
        )
        return self.register_consumer(
            connection.as_connection(),
            Client(client_id, 0, 479, self.time.now_s),
            data,
            fingerprint=fingerprint,
            keep_subscriptions=without,
            notifies=notifies,
        )

    def ids(self, group: str = "g") -> list[str]:
        found = self.consumer_group(group)
        return [] if found is None else found.client_ids()

    def topics(self, group: str = "g") -> set[str]:
        found = self.consumer_group(group)
        return set() if found is None else set(found.subscriptions)

    def news(self) -> list[str]:
        told, self.told[:] = list(self.told), []
        return told


@pytest.fixture
def table() -> Table:
    return Table()


def test_joining_leaving_and_other_topics_are_news(table: Table) -> None:
    one, two = FakeConnection(), FakeConnection()
    table.beat(one, "one", "T")
    assert table.news() == ["g"]
    table.beat(one, "one", "T")
    assert table.news() == []
    table.beat(two, "two", "T")
    assert (table.ids(), table.news()) == (["one", "two"], ["g"])
    table.beat(two, "two", "T", "U")
    assert (table.topics(), table.news()) == ({"T", "U"}, ["g"])
    table.beat(two, "two", "T")
    assert (table.topics(), table.news()) == ({"T"}, ["g"])
    table.beat(two, "two", "T", version=2)
    assert table.news() == [], "a later version of a subscription is not news"
    table.unregister_consumer(two.as_connection(), "g", notifies=True)
    assert (table.ids(), table.news()) == (["one"], ["g"])
    table.unregister_consumer(two.as_connection(), "g", notifies=True)
    table.unregister_consumer(two.as_connection(), "unknown", notifies=True)
    assert table.news() == []
    table.unregister_consumer(one.as_connection(), "g", notifies=True)
    assert table.consumer_group("g") is None and table.news() == [], "nobody is left to be told"


def test_broadcasting_groups_and_groups_that_do_not_want_to_be_told(table: Table) -> None:
    one, two = FakeConnection(), FakeConnection()
    for group, model, notifies in (("b", "BROADCASTING", True), ("quiet", "CLUSTERING", False)):
        table.beat(one, "one", "T", group=group, model=model, notifies=notifies)
        table.beat(two, "two", "T", group=group, model=model, notifies=notifies)
        table.unregister_consumer(two.as_connection(), group, notifies=notifies)
        table.beat(two, "two", "T", group=group, model=model, notifies=notifies)
    assert table.news() == []
    table.drop(two.as_connection())
    assert table.news() == ["quiet"], "who has vanished leaves queues behind"
    assert table.ids("b") == table.ids("quiet") == ["one"]


def test_an_older_subscription_does_not_replace_a_newer_one(table: Table) -> None:
    one, two = FakeConnection(), FakeConnection()
    table.beat(one, "one", "T", version=5)
    table.beat(two, "two", "T", version=4)
    group = table.consumer_group("g")
    assert group is not None and group.subscriptions["T"].version == 5


def test_a_client_with_two_connections_is_one_member_until_both_are_gone(table: Table) -> None:
    old, new = FakeConnection(), FakeConnection()
    table.beat(old, "one", "T")
    table.beat(new, "one", "T")
    group = table.consumer_group("g")
    assert group is not None and table.ids() == ["one"]
    assert group.find("one") == (new.as_connection(), group.members[new.as_connection()])
    table.drop(old.as_connection())
    assert table.ids() == ["one"]
    table.drop(new.as_connection())
    assert table.ids() == [] and group.find("one") is None


def test_two_consumers_with_one_client_id_are_told_apart_from_one_that_came_back(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = FakeConnection(), FakeConnection()
    for connection in (old, old, new, new):
        table.beat(connection, "one", "T")
    assert caplog.messages == []  # the old connection may be a dead one
    table.beat(old, "one", "T")
    assert caplog.messages == []  # sent before it died, and read late
    for connection in (new, old, old):
        table.beat(connection, "one", "T")
    (warning,) = caplog.messages
    assert "group g: two consumers" in warning and "the same client id one" in warning


def test_a_connection_that_changes_its_client_id(table: Table) -> None:
    one = FakeConnection()
    table.beat(one, "one", "T")
    table.beat(one, "uno", "T")
    assert (table.ids(), table.news()) == (["uno"], ["g", "g"])


def test_a_closed_connection_leaves_all_its_groups_and_no_other(table: Table) -> None:
    one, two = FakeConnection(), FakeConnection()
    client = Client("one", 0, 479, 0.0)
    for group in ("g", "h"):
        table.beat(one, "one", "T", group=group)
        table.register_producer(one.as_connection(), client, f"p-{group}")
    table.beat(two, "two", "T")
    table.register_producer(two.as_connection(), client, "p-g")
    table.news()
    table.drop(one.as_connection())
    table.drop(one.as_connection())
    assert (table.ids("g"), table.ids("h"), table.news()) == (["two"], [], ["g"])
    assert list(table.producers("p-g")) == [two.as_connection()]
    assert not table.producers("p-h")


def test_who_is_silent_too_long_is_dropped_and_disconnected(table: Table) -> None:
    silent, alive = FakeConnection(), FakeConnection()
    table.beat(silent, "one", "T")
    table.beat(alive, "two", "T")
    table.register_producer(silent.as_connection(), Client("one", 0, 479, 1000.0), "p")
    table.time.now_s += 100
    table.beat(alive, "two", "T")
    table.news()
    assert table.expire() == 0
    table.time.now_s += 21
    assert table.expire() == 1
    assert not silent.is_open and alive.is_open
    assert (table.ids(), table.news()) == (["two"], ["g"])
    assert not table.producers("p")


# --- heartbeats without subscriptions


def test_subscriptions_stay_when_a_heartbeat_leaves_them_out(table: Table) -> None:
    one = FakeConnection()
    assert not table.beat(one, "one", "T", fingerprint=7)
    assert not table.beat(one, "one", fingerprint=7, without=True)
    assert table.topics() == {"T"}
    assert table.beat(one, "one", "T", "U", fingerprint=8), "they changed"
    assert table.topics() == {"T", "U"}


def test_members_that_subscribe_differently_are_asked_for_their_subscriptions(table: Table) -> None:
    one, two = FakeConnection(), FakeConnection()
    assert not table.beat(one, "one", "T", fingerprint=7)
    assert table.beat(two, "two", "U", fingerprint=8)
    assert table.beat(one, "one", fingerprint=7, without=True)
    assert table.beat(two, "two", "U", fingerprint=8)


QUEUE_LOSS = "Each queue is read by one member alone, so what the others want of it is lost"
POP_LOSS = "What one member does not want of a queue is passed over for the whole group"


@pytest.mark.parametrize(
    ("kind", "first", "second", "said"),
    [
        (ConsumeType.PUSH, ["T"], ["U"], QUEUE_LOSS),
        (ConsumeType.PUSH, ["T:a"], ["T:b"], QUEUE_LOSS),
        (ConsumeType.PUSH, ["T"], ["T"], ""),
        (ConsumeType.POP, ["T"], ["U"], ""),
        (ConsumeType.POP, ["T", "U:a"], ["U:a"], ""),
        (ConsumeType.POP, ["T:a"], ["T:b"], POP_LOSS),
        (ConsumeType.POP, ["T", "U:a"], ["U"], POP_LOSS),
    ],
)
def test_what_members_that_subscribe_differently_lose(
    table: Table,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    first: list[str],
    second: list[str],
    said: str,
) -> None:
    one, two, three = FakeConnection(), FakeConnection(), FakeConnection()
    table.beat(one, "one", *first, kind=kind)
    for _ in range(2):
        table.beat(two, "two", *second, kind=kind)
    assert [record.getMessage().count(said) for record in caplog.records] == [1] * bool(said)
    table.beat(three, "three", "V", kind=kind)
    table.beat(two, "two", *second, "W", kind=kind)
    is_new = kind == ConsumeType.PUSH and not said
    assert len(caplog.records) == bool(said) + is_new, "once, while it is so"


def test_members_that_agree_again_are_warned_of_the_next_difference(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = FakeConnection(), FakeConnection()
    for count in (1, 2):
        table.beat(one, "one", "T:a", kind=ConsumeType.POP)
        table.beat(two, "two", "T:b", kind=ConsumeType.POP)
        assert len(caplog.records) == count
        table.drop(two.as_connection())


def test_subscriptions_that_we_never_heard_are_asked_for(table: Table) -> None:
    one = FakeConnection()
    assert table.beat(one, "one", fingerprint=7, without=True), "we were restarted, they went on"
    assert table.topics() == set() and table.ids() == ["one"]
    assert not table.beat(one, "one", "T", fingerprint=7)
    assert not table.beat(one, "one", fingerprint=7, without=True)


# --- producers


def test_a_producer_is_found_by_its_id_at_its_latest_connection(table: Table) -> None:
    old, new = FakeConnection().as_connection(), FakeConnection().as_connection()
    client = Client("one", 0, 479, 0.0)
    assert table.producer("one") is None
    for connection in (old, new):
        for group in ("p", "q"):
            table.register_producer(connection, client, group)
    assert table.producer("one") is new
    table.register_producer(old, client, "p")
    assert table.producer("one") is new, "a heartbeat over the old one is not a new connection"
    table.unregister_producer(new, "p")
    assert table.producer("one") is new, "of another group it is still a producer"
    table.unregister_producer(new, "q")
    table.unregister_producer(new, "q")
    assert table.producer("one") is old
    table.drop(old)
    assert table.producer("one") is None


@pytest.mark.parametrize("how", ["both end", "the older ends", "another id"])
def test_a_client_that_came_back_is_watched_while_it_has_two_connections(
    table: Table, how: str
) -> None:
    old, new, other = FakeConnection(), FakeConnection(), FakeConnection()
    table.beat(other, "other", "T")
    group = table.consumer_group("g")
    assert group is not None
    table.beat(old, "one", "T")
    table.beat(new, "one", "T")
    assert group.doubled == {"one": 0}
    table.drop(other.as_connection())
    assert group.doubled == {"one": 0}
    if how == "another id":
        table.beat(old, "two", "T")
    else:
        table.drop(old.as_connection())
    assert group.doubled == {}
    if how == "both end":
        table.drop(new.as_connection())
        assert table.consumer_group("g") is None


def test_of_three_connections_two_are_left(table: Table) -> None:
    connections = [FakeConnection() for _ in range(3)]
    for connection in connections:
        table.beat(connection, "one", "T")
    group = table.consumer_group("g")
    assert group is not None
    table.drop(connections[0].as_connection())
    assert group.doubled == {"one": 0}
