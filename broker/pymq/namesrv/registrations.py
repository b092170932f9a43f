"""What brokers announce of themselves, and how long ago something was heard of them."""

from collections.abc import Iterable
from dataclasses import dataclass

from pymq.errors import BrokerSystemError
from pymq.protocol.bodies import DataVersion, TopicTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a broker announces about itself (REGISTER_BROKER)."""

    cluster: str
    broker_name: str
    broker_id: int
    #: ``host:port`` that clients connect to.
    address: str
    topics: TopicTable  # not to be changed: the next registration may be the same
    #: A digest of the body that held the topics and the filter servers.
    body_digest: bytes = b""
    ha_address: str | None = None
    filter_servers: tuple[str, ...] = ()
    #: May a slave stand in for its master? ``None``: a broker older than 5.0, which cannot.
    acting_master: bool | None = None
    zone_name: str | None = None
    #: Seconds without a sign of life after which the broker is gone; ``None``: the table's.
    expiry_s: float | None = None
    #: Identifies the connection it came over; when that ends, the broker is removed.
    connection: object = None


@dataclass(slots=True)
class Live:
    """What an address registered last, and when something was heard of it."""

    broker: Registration
    seen_s: float
    expiry_s: float
    #: Over which another broker registered the same address; None: nobody, or it has ended.
    rival: object = None
    #: When it first registered with its id, which put out whoever had that until then. Renewals do
    #: not change it; ``RouteTable.grant`` moves it with ``seen_s``, which it is compared with.
    since_s: float = 0.0

    @property
    def version(self) -> DataVersion:
        """That of the topics."""
        return self.broker.topics.version

    def moved(self, broker: Registration) -> bool:
        """Does the address now register as another broker?"""
        now = (broker.broker_name, broker.cluster)
        return (self.broker.broker_name, self.broker.cluster) != now


def heir_of(left: Live, lives: Iterable[Live]) -> Registration | None:
    """Return the broker that has the name and id of one that is gone, and was put out by it.

    One that was not heard since then may have ended before, on a host that said nothing.
    """
    gone, version = left.broker, left.version.state_version
    heirs = [
        live
        for live in lives
        if (live.broker.broker_name, live.broker.cluster) == (gone.broker_name, gone.cluster)
        and live.broker.broker_id == gone.broker_id
        and live.seen_s > left.since_s
        and live.version.state_version >= version  # of a group with a controller: nor deposed
    ]
    return max(heirs, key=lambda one: one.seen_s).broker if heirs else None


def group_of(broker: Registration) -> str:
    """Return the name of a broker and that of its cluster."""
    return f"{broker.broker_name} of cluster {broker.cluster}"


def unknown(broker: Registration) -> BrokerSystemError:
    """Return the error for a broker that is not known and announces a single topic."""
    text = (
        f"register broker failed: {broker.broker_name} (id {broker.broker_id}, {broker.address}) "
        "is not known here yet and announces a single topic; register the whole topic table first"
    )
    return BrokerSystemError(text, code=1, remark=text)
