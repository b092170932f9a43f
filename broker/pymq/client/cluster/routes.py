"""Routes, pure: which queues a topic has, and where each lives.

A route as a name server gives it (``bodies.TopicRoute``) becomes a ``Route``: lists of queues
and addresses. The writable queues of a topic are those of brokers whose *master* (broker id
0) is there and whose topic has the W bit; the readable ones need the R bit and any address.

A topic that does not exist yet is created by the first send to it: its route is borrowed from
the topic ``TBW102``, with at most the client's default number of queues. Such a route is
*provisional*: good for sending, asked for again soon.

The writable queues of an order topic are what somebody wrote into the name server's
configuration; so what is wrong with them is said in its words.

Source: RocketMQ MQClientInstance.topicRouteData2TopicPublishInfo, TopicPublishInfo.
"""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from pymq.errors import ConfigurationError, RemoteProtocolError, RouteNotFound, TopicNotExist
from pymq.net.said_once import SaidOnce
from pymq.protocol.bodies import ClusterInfo, MessageQueue, QueueData, TopicRoute
from pymq.protocol.codes import Permission
from pymq.protocol.names import DEAD_LETTER_PREFIX

_log = logging.getLogger(__name__)

MASTER_ID = 0
#: Of one topic on one broker. A queue is an object here, so a number out of thin air costs memory.
QUEUE_COUNT_MAX = 65536
#: Of one topic on all brokers.
ROUTE_QUEUE_COUNT_MAX = 4 * QUEUE_COUNT_MAX
#: Of configurations of order topics, by topic and text: routes are read again and again.
_wrong_confs = SaidOnce(_log)


@dataclass(frozen=True, slots=True)
class Route:
    """Where one topic lives.

    Attributes:
        topic: its name.
        write_queues: what a producer may send to, in Java's order.
        read_queues: what a consumer may read.
        addresses: broker name -> broker id -> ``host:port``.
        is_provisional: borrowed from ``TBW102``.
        order_conf: the configuration that ``write_queues`` come from; "": they are of the brokers.
    """

    topic: str
    write_queues: tuple[MessageQueue, ...]
    read_queues: tuple[MessageQueue, ...]
    addresses: dict[str, dict[int, str]]
    is_provisional: bool = False
    order_conf: str = ""

    def only(self, queues: Collection[MessageQueue]) -> "Route":
        """Return the part of the route that some queues need; small, to be sent elsewhere."""
        names = {queue.broker_name for queue in queues}
        return replace(
            self,
            write_queues=tuple(queue for queue in self.write_queues if queue in queues),
            read_queues=tuple(queue for queue in self.read_queues if queue in queues),
            addresses={name: at for name, at in self.addresses.items() if name in names},
        )

    def address(self, broker_name: str, broker_id: int = MASTER_ID) -> str:
        """Return the address of a broker.

        Raises:
            RouteNotFound: the route has no such broker.
        """
        address = self.addresses.get(broker_name, {}).get(broker_id)
        if address is None:
            what = "master" if broker_id == MASTER_ID else f"broker id {broker_id}"
            raise RouteNotFound(
                f"topic {self.topic!r}: its route has no {what} of broker {broker_name!r}, found "
                f"{_listed(self.addresses)}; is that broker running?"
                f"{self._order_advice(broker_name, broker_id)}"
            )
        return address

    def read_address(self, broker_name: str, broker_id: int = MASTER_ID) -> str:
        """Return the address to read from: that broker id, else the master, else any slave.

        Raises:
            RouteNotFound: the route has no address of that broker.
        """
        known = self.addresses.get(broker_name)
        if not known:
            return self.address(broker_name, broker_id)  # raises
        return known.get(broker_id) or known.get(MASTER_ID) or known[min(known)]

    def _order_advice(self, broker_name: str, broker_id: int) -> str:
        """Return where the name of a broker comes from that the route knows nothing else of."""
        if broker_id != MASTER_ID or broker_name in self.addresses:
            return ""
        conf = _OrderConf.read(self.order_conf)
        if broker_name not in (name for name, _ in conf.counts):
            return ""
        return f" If there is none of that name: {_order_text(self.topic, self.order_conf, conf)}"

    def masters(self) -> dict[str, str]:
        """Return broker name -> master address, of the brokers that have one."""
        return {
            name: known[MASTER_ID] for name, known in self.addresses.items() if MASTER_ID in known
        }


def existing_route(topic: str, found: TopicRoute) -> Route:
    """Return the route of an existing topic.

    Raises:
        RemoteProtocolError: it has more queues than a topic can have.
    """
    addresses = _addresses(found)
    order_conf = found.order_topic_conf or ""
    if order_conf:
        write_queues = _ordered_queues(topic, order_conf)
    else:
        write_queues = _write_queues(topic, found.queues, addresses)
    readable = _queues(
        topic,
        (
            (data.broker_name, data.read_queue_count)
            for data in found.queues
            if data.perm & Permission.READ and addresses.get(data.broker_name)
        ),
    )
    return Route(topic, write_queues, tuple(sorted(readable)), addresses, order_conf=order_conf)


def provisional_route(topic: str, template: TopicRoute, queue_count_max: int) -> Route:
    """Return the route that a topic will have when a send has created it.

    Args:
        topic: does not exist yet.
        template: route of ``TBW102``.
        queue_count_max: most queues per broker.

    Raises:
        RemoteProtocolError: the template has more queues than a topic can have.
    """
    addresses = _addresses(template)
    write_queues = _write_queues(topic, template.queues, addresses, queue_count_max)
    return Route(topic, write_queues, write_queues, addresses, is_provisional=True)


def _addresses(found: TopicRoute) -> dict[str, dict[int, str]]:
    return {broker.broker_name: dict(broker.addresses) for broker in found.brokers}


def _queues(
    topic: str, counts: Iterable[tuple[str, int]], queue_count_max: int = QUEUE_COUNT_MAX
) -> list[MessageQueue]:
    """Return as many queues of each broker as a route says, at most so many of each."""
    queues: list[MessageQueue] = []
    for name, count in counts:
        if count > QUEUE_COUNT_MAX:
            raise RemoteProtocolError(
                f"the route of topic {topic!r} gives broker {name!r} {count} queues, "
                f"expected at most {QUEUE_COUNT_MAX}"
            )
        count = min(count, queue_count_max)
        if len(queues) + count > ROUTE_QUEUE_COUNT_MAX:
            raise RemoteProtocolError(
                f"the route of topic {topic!r} has more than {len(queues)} queues in all, "
                f"expected at most {ROUTE_QUEUE_COUNT_MAX}"
            )
        queues += [MessageQueue(topic, name, number) for number in range(count)]
    return queues


def _write_queues(
    topic: str,
    queues: Iterable[QueueData],
    addresses: dict[str, dict[int, str]],
    queue_count_max: int = QUEUE_COUNT_MAX,
) -> tuple[MessageQueue, ...]:
    writable = (
        (data.broker_name, data.write_queue_count)
        for data in queues
        if data.perm & Permission.WRITE and MASTER_ID in addresses.get(data.broker_name, {})
    )
    return tuple(sorted(_queues(topic, writable, queue_count_max)))


def _ordered_queues(topic: str, conf: str) -> tuple[MessageQueue, ...]:
    """Return the queues of an order topic: ``broker-a:8;broker-b:8``, in that order.

    As in Java neither permission bits nor the brokers that are there matter: a broker that is
    away keeps its queues, so that the choice of a queue by key does not change. Its master must
    be known to send.
    """
    found = _OrderConf.read(conf)
    if found.wrong or found.repeated:
        text = _order_text(topic, conf, found)
        _wrong_confs.warn((topic, conf), "topic %r: %s", topic, text)
    return tuple(_queues(topic, found.counts))


@dataclass(frozen=True, slots=True)
class _OrderConf:
    """The configuration of an order topic.

    Attributes:
        counts: broker and number of queues of each part.
        wrong: the parts that say neither.
        repeated: the brokers of more than one part.
    """

    counts: tuple[tuple[str, int], ...]
    wrong: tuple[str, ...]
    repeated: tuple[str, ...]

    @classmethod
    def read(cls, conf: str) -> "_OrderConf":
        """Read its text."""
        counts, wrong = [], []
        for part in filter(None, map(str.strip, conf.split(";"))):
            name, _, count = map(str.strip, part.partition(":"))
            if name and count.isascii() and count.isdigit():
                # Nine digits are too many queues, and int() refuses thousands of them.
                counts.append((name, int(count.lstrip("0")[:9] or "0")))
            else:
                wrong.append(part)
        names = Counter(name for name, _ in counts)
        return cls(tuple(counts), tuple(wrong), tuple(name for name in names if names[name] > 1))


def _order_text(topic: str, conf: str, found: _OrderConf) -> str:
    """Say where the queues of an order topic come from, and what is wrong there."""
    wrong = ""
    if found.wrong:
        wrong += f"; not so: {', '.join(map(repr, found.wrong))}"
    if found.repeated:
        names = ", ".join(map(repr, found.repeated))
        wrong += f"; named more than once, so that their queues get more than others: {names}"
    return (
        f"the name server's configuration of order topics, namespace ORDER_TOPIC_CONFIG, key "
        f"{topic!r}, says {conf[:200]!r}, expected 'broker-a:4;broker-b:4', a broker and its "
        f"number of queues each{wrong}. Correct it there (mqadmin updateOrderConf; "
        "orderMessageEnable=true hands it out)"
    )


def _listed(addresses: dict[str, dict[int, str]]) -> str:
    if not addresses:
        return "no broker"
    return ", ".join(
        f"{name} ({'; '.join(f'{number}: {at}' for number, at in sorted(known.items())) or '-'})"
        for name, known in sorted(addresses.items())
    )


def pick_queue(
    queues: Sequence[MessageQueue], turn: int, *, avoid: Collection[str] = ()
) -> MessageQueue:
    """Return the queue whose turn it is, of a broker that is not to be avoided if possible.

    Args:
        queues: at least one.
        turn: a counter of the caller's; any integer.
        avoid: names of brokers that just failed.
    """
    count = len(queues)
    if avoid:
        for step in range(count):
            queue = queues[(turn + step) % count]
            if queue.broker_name not in avoid:
                return queue
    return queues[turn % count]


def has_master(info: ClusterInfo) -> bool:
    """Do name servers know any master?"""
    return any(MASTER_ID in broker.addresses for broker in info.brokers.values())


# ------------------------------------------------------------------------------------- errors


def no_route(
    topic: str, name_servers: Sequence[str], missing: TopicNotExist | None = None
) -> RouteNotFound:
    """Return the error for a topic that no name server has a route of.

    Args:
        topic: which.
        name_servers: ``host:port`` of each.
        missing: what ``NameServerFailures`` has made of their answers; ``None``: nothing.
    """
    is_certain = missing is not None and missing.is_certain
    failures = () if is_certain else getattr(missing, "__notes__", ())
    unasked = f" (not all of them could be asked: {'; '.join(failures)})" if failures else ""
    if topic.startswith(DEAD_LETTER_PREFIX):
        group = topic.removeprefix(DEAD_LETTER_PREFIX)
        advice = f"it is made with the first dead letter of group {group!r}: is there one, and is "
        advice += "that the group's name?"
    else:
        advice = (
            f"create it with `pymq topic create {topic}` (mqadmin updateTopic), or set "
            "autoCreateTopicEnable=true on a broker and send to it first; a topic just created "
            "takes a second or two to be known, and a name server that has just started knows "
            "none until the brokers register again, after up to 30 s"
        )
    error = RouteNotFound(
        f"topic {topic!r}: no name server of [{', '.join(name_servers)}] knows a broker for it"
        f"{unasked}; {advice}"
    )
    error.is_certain = is_certain
    return error


def no_master(name_servers: Sequence[str]) -> RouteNotFound:
    """Return the error for name servers that know no master; ``host:port`` of each."""
    return RouteNotFound(
        f"no master broker is registered at [{', '.join(name_servers)}]; is one running, with "
        "these name servers in its namesrvAddr?"
    )


def not_a_name_server(address: str, *, is_broker: bool) -> ConfigurationError:
    """Return the error for an address that was given as a name server's and is not one.

    Args:
        address: ``host:port``; it does not support requests for routes.
        is_broker: it supports requests that only brokers do.
    """
    what = "is a broker" if is_broker else "does not answer requests for routes, as brokers do not"
    return ConfigurationError(
        f"{address} was given as a name server and {what}; give the name server's address, whose "
        "port is usually 9876 (a broker's is 10911), as in namesrvAddr of the broker's "
        "configuration"
    )


def no_write_queue(route: Route) -> RouteNotFound:
    """Return the error for a topic whose route has nothing to send to."""
    if route.order_conf:
        text = _order_text(route.topic, route.order_conf, _OrderConf.read(route.order_conf))
        return RouteNotFound(f"topic {route.topic!r}: it is an order topic without a queue: {text}")
    return RouteNotFound(
        f"topic {route.topic!r}: no queue can be written to; brokers: {_listed(route.addresses)}; "
        "a master must be running (broker id 0), and topic and broker must have the W permission"
    )


def no_read_queue(route: Route) -> RouteNotFound:
    """Return the error for a topic whose route has nothing to read."""
    return RouteNotFound(
        f"topic {route.topic!r}: no queue can be read; brokers: {_listed(route.addresses)}; "
        "a broker must be running, and topic and broker must have the R permission"
    )
