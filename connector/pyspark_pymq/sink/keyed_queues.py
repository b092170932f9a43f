"""Queues of rows with a sharding key: rows of one key go to one queue, in their order.

A key's queue is the one that RocketMQ's SelectMessageQueueByHash chooses among all queues of the
topic that can be written, sorted by broker and number: Java's hash of the key, without its sign,
modulo their count. So producers in Java and this sink agree, unless rows are written exactly once
to a topic of several brokers: then it is one of the queues of the broker that has the sink.

The choice is fixed: a row waits for its queue's broker, as rows with a ``queueId`` do, however
long that is away within ``retryTimeoutMs``. It depends on which queues there are. Name servers
forget a broker 120 s after its last sign of life, or as soon as it is stopped in order; tasks that
start after that divide the keys among the queues that are left, as producers in Java do. For a
topic with an order configuration, name servers tell all queues even then.

Rows with a ``queueId`` alone go to the first broker that has such a queue. Where others name that
broker, all of them are rows of one queue, whose order counts.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pymq.client.sockets.blocking_pool import PASSING
from pymq.client.sockets.bulk_client import BulkClient
from pymq.columns.arrow_arrays import contents
from pymq.errors import RouteNotFound
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.java_hashes import java_hashes
from pyspark_pymq.format_options import check_target
from pyspark_pymq.retrying import Retries

#: How many ids of queues there are.
_IDS = 1 << 32


class KeyedQueues:
    """Chooses the queues of one task.

    Args:
        client: open.
        topic: of all rows; None: a column says it.
        broker: whose queues they are; None: all brokers'.
        retry_s: how long a route is waited for.
    """

    def __init__(
        self, client: BulkClient, topic: str | None, broker: str | None, retry_s: float
    ) -> None:
        self._client = client
        self._topic = topic
        self._broker = broker
        self._retry_s = retry_s
        self._queues: dict[str, list[MessageQueue]] = {}

    def choose(self, columns: dict[str, pa.Array]) -> None:
        """Fill ``queueId`` and ``brokerName`` of rows that have a key and no ``queueId``.

        Args:
            columns: of some rows; ``shardingKey`` and texts binary. Changed.

        Raises:
            ConfigurationError, LocalProtocolError: a topic is none that can be written to.
            PymqError: a topic's queues could not be found out.
        """
        keys = columns["shardingKey"]
        text, start = contents(keys)
        lengths = np.diff(start)
        keyed = lengths > 0
        given = columns.get("queueId")
        if given is not None:
            keyed &= given.is_null().to_numpy(zero_copy_only=False)
        if keys.null_count:
            keyed &= keys.is_valid().to_numpy(zero_copy_only=False)
        hashes = java_hashes(text, start[:-1], lengths).view(np.int32).astype(np.int64)
        queues: list[MessageQueue] = []  # of all topics
        chosen = np.zeros(len(keys), np.int64)
        is_chosen = np.zeros(len(keys), np.bool_)
        for topic, rows in self._by_topic(columns, keyed):
            of_topic = self._queues_of(topic)
            chosen[rows] = len(queues) + np.abs(hashes[rows]) % len(of_topic)
            is_chosen[rows] = True
            queues += of_topic
        at = pa.array(chosen, mask=~is_chosen)
        ids = pa.array([queue.queue_id for queue in queues], pa.int64()).take(at)
        names = [queue.broker_name.encode() for queue in queues]
        brokers = pa.array(names, pa.binary()).take(at)
        if given is not None:
            ids = pc.coalesce(ids, given.cast(pa.int64()))
        if "brokerName" in columns:
            brokers = pc.coalesce(brokers, columns["brokerName"])
        columns["queueId"], columns["brokerName"] = ids, brokers

    def name_brokers(self, columns: dict[str, pa.Array]) -> None:
        """Fill ``brokerName`` of rows that have a ``queueId`` alone, if other rows name its broker.

        Args:
            columns: of some rows; ``queueId`` and ``brokerName`` among them. Changed.

        Raises:
            PymqError: as ``choose``.
        """
        names, ids = columns["brokerName"], columns["queueId"]
        nobody = pa.scalar(None, names.type)
        names = pc.if_else(pc.equal(pc.binary_length(names), 0), nobody, names)
        unnamed = pc.and_(names.is_null(), ids.is_valid())
        if self._broker is not None:
            names = pc.if_else(unnamed, pa.scalar(self._broker.encode(), names.type), names)
        elif pc.any(unnamed).as_py():
            topics = columns.get("topic")
            if self._topic is not None:
                topics = pa.repeat(pa.scalar(self._topic.encode()), len(ids))
            names = pc.if_else(unnamed, self._named_firsts(topics, ids, names, unnamed), names)
        columns["brokerName"] = names

    def _named_firsts(
        self, topics: pa.Array, ids: pa.Array, names: pa.Array, unnamed: pa.Array
    ) -> pa.Array:
        """Return for each row the first broker that has its queue, null unless a row names it."""
        encoded = topics.dictionary_encode()
        # One number for topic and queue: a column is looked at as often for many queues as for one.
        keys = pc.add(pc.multiply(encoded.indices.cast(pa.int64()), _IDS), ids.cast(pa.int64()))
        is_shared = pc.is_in(keys, value_set=keys.filter(unnamed).drop_null())
        is_shared = pc.and_(is_shared, names.is_valid())
        firsts: dict[int, bytes] = {}
        for code in encoded.indices.filter(is_shared).unique().to_pylist():
            for queue in self._queues_of(encoded.dictionary[code].as_py().decode()):
                firsts.setdefault(code * _IDS + queue.queue_id, queue.broker_name.encode())
        at = pc.index_in(keys, value_set=pa.array(firsts, pa.int64()))
        brokers = pa.array(firsts.values(), names.type).take(at)
        is_named = pc.is_in(keys, value_set=keys.filter(pc.equal(names, brokers)))
        return pc.if_else(is_named, brokers, pa.scalar(None, names.type))

    def _by_topic(
        self, columns: dict[str, pa.Array], keyed: npt.NDArray[np.bool_]
    ) -> list[tuple[str, npt.NDArray[np.int64]]]:
        """Return each topic's rows among those with a key; rows without a topic are left out."""
        rows = np.flatnonzero(keyed)
        if self._topic is not None or not len(rows):
            return [(self._topic, rows)] if self._topic is not None and len(rows) else []
        encoded = columns["topic"].dictionary_encode()
        codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)[rows]
        return [
            (name.decode(), rows[codes == code])
            for code, name in enumerate(encoded.dictionary.to_pylist())
            if (codes == code).any()
        ]

    def _queues_of(self, topic: str) -> list[MessageQueue]:
        """Return a topic's queues, the same as long as this task runs."""
        if topic in self._queues:
            return self._queues[topic]
        check_target(topic)
        retries = Retries(self._retry_s, f"asking for the queues of topic {topic}")
        while True:
            try:
                queues = sorted(
                    queue
                    for queue in self._client.write_queues(topic)
                    if self._broker in (None, queue.broker_name)
                )
                if not queues:
                    raise RouteNotFound(f"topic {topic} has no queue at broker {self._broker}")
            except (*PASSING, RouteNotFound) as error:
                retries.wait_after(error)
            else:
                self._queues[topic] = queues
                return queues
