"""What a stream has consumed, committed as the progress of a consumer group, for people to see.

``pymq group lag``, ``mqadmin consumerProgress`` and dashboards then show a query like any consumer.
Nothing is ever read back: where a stream continues is in Spark's checkpoint. So commits are best
effort: rare, never waited for when a broker is away, and no failure of them fails the query.

``mqadmin`` finds a group by its retry topic, which a broker creates at the first heartbeat of a
member, together with the group if it may (``autoCreateSubscriptionGroup``); and brokers from 5.0 on
take commits of groups that exist only. A query is not a member: it would have a share of the
group's queues. So where that topic is missing, one heartbeat is sent, and taken back at once.

The end of a batch is committed when the next one is planned, and that of the last batch when
trigger AvailableNow asks what else there is (Spark 4.2 and later). A query that is stopped, and
trigger once, end without such a question: what their last batch read stays uncommitted.
"""

import functools
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pymq.client import operations
from pymq.client.cluster.config import ClientConfig
from pymq.client.cluster.routes import Route
from pymq.client.operations import Operation
from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import GroupNotExist, PymqError, RouteNotFound
from pymq.protocol.bodies import (
    ConsumerData,
    ConsumeType,
    Heartbeat,
    MessageQueue,
    Subscription,
)
from pymq.protocol.names import retry_topic
from pyspark_pymq.offsets import Offsets
from pyspark_pymq.source.options import SourceOptions

LOG = logging.getLogger(__name__)

#: Commits are at least this far apart.
INTERVAL_S = 1.0
#: A query waits this long at most for a broker that has stopped answering, and then not at all.
TIMEOUT_S = 0.5
AWAY_S = 30.0
#: Everything is committed again after this: a broker that was killed forgets the last seconds.
REPEAT_S = 30.0


class GroupProgress:
    """The progress of one stream, as its consumer group. Lives in one driver process.

    Args:
        options: of the source.
        monotonic_s: the clock.
        connect: makes the client.
    """

    def __init__(
        self,
        options: SourceOptions,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
        connect: Callable[..., BulkClient] = BulkClient,
    ) -> None:
        self._options = options
        self._group = options.consumer_group
        self._monotonic_s = monotonic_s
        self._connect = connect
        self._client: BulkClient | None = None
        self._committed: Offsets = {}
        self._due_s = self._repeat_s = monotonic_s()
        self._away_until_s: dict[str, float] = {}
        self._said: dict[str, str] = {}  # broker name -> kind of the failure that was logged
        self._known_at: set[str] = set()  # addresses of brokers that know the group
        self._client_id = f"spark@{os.getpid()}#{time.time_ns()}"

    def publish(self, consumed: Offsets, routes: Iterable[Route], *, at_once: bool = False) -> None:
        """Commit what has been consumed, where it has changed; does not raise.

        Args:
            consumed: the next offset of each queue.
            routes: of the topics.
            at_once: now, however recent the last commit or failure is.
        """
        if not self._options.commits_offsets:
            return
        now_s = self._monotonic_s()
        if now_s < self._due_s and not at_once:
            return
        self._due_s = now_s + INTERVAL_S
        if now_s >= self._repeat_s:
            self._committed.clear()
            self._known_at.clear()
            self._repeat_s = now_s + REPEAT_S
        changed = {q: offset for q, offset in consumed.items() if self._committed.get(q) != offset}
        masters = {route.topic: route.masters() for route in routes}
        wanted = {
            queue: address
            for queue in changed
            if (address := masters.get(queue.topic, {}).get(queue.broker_name)) is not None
            and (at_once or self._away_until_s.get(queue.broker_name, now_s) <= now_s)
        }
        if not wanted:
            return
        try:
            self._commit(changed, self._introduced_to(wanted))
        except PymqError as error:  # not of one broker
            self._say("", "", error)

    def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _open(self) -> BulkClient:
        if self._client is None:
            timeout_s = min(TIMEOUT_S, self._options.request_timeout_s)
            config = ClientConfig(
                name_servers=self._options.name_servers,
                timeout_s=timeout_s,
                network=self._options.network,
            )
            self._client = self._connect(self._options.name_servers, config=config)
        return self._client

    def _commit(self, changed: Offsets, wanted: Mapping[MessageQueue, str]) -> None:
        asked = [
            (address, operations.update_offset(self._group, queue, changed[queue]))
            for queue, address in wanted.items()
        ]
        answers: Sequence[Any] = self._open().ask_many(asked)
        failed: dict[str, PymqError] = {}
        for (queue, address), answer in zip(wanted.items(), answers, strict=True):
            if isinstance(answer, PymqError):
                failed.setdefault(queue.broker_name, answer)
                self._known_at.discard(address)
            else:
                self._committed[queue] = changed[queue]
        for name in {queue.broker_name for queue in wanted}:
            if name in failed:
                self._failed(name, failed[name])
            elif self._said.pop(name, None) is not None:
                LOG.info("broker %s takes the progress of group %s again", name, self._group)

    def _introduced_to(self, wanted: Mapping[MessageQueue, str]) -> dict[MessageQueue, str]:
        """Return the queues whose brokers know the group, as tools look for it."""
        new = sorted(set(wanted.values()) - self._known_at)
        strangers = self._strangers(new)
        beat = Heartbeat(client_id=self._client_id, consumers=[self._member(wanted)])
        failed = self._each(strangers, lambda: operations.heartbeat(beat))
        greeted = [address for address in strangers if address not in failed]
        leave = functools.partial(
            operations.unregister, self._client_id, consumer_group=self._group
        )
        failed |= self._each(greeted, leave)
        self._known_at |= set(new) - set(failed)
        for queue, address in wanted.items():
            if address in failed:
                self._failed(queue.broker_name, failed[address])
        return {queue: address for queue, address in wanted.items() if address not in failed}

    def _strangers(self, addresses: Sequence[str]) -> list[str]:
        """Return the addresses whose brokers have no retry topic of the group."""
        if not addresses:
            return []
        topic = retry_topic(self._group)
        client = self._open()
        client.forget_route(topic)
        try:
            known = set(client.route(topic).masters().values())
        except RouteNotFound:
            known = set()
        except PymqError as error:
            LOG.debug("tools may not find group %s: %s", self._group, error)
            return []
        return [address for address in addresses if address not in known]

    def _member(self, queues: Iterable[MessageQueue]) -> ConsumerData:
        topics = sorted({queue.topic for queue in queues})
        return ConsumerData(
            group=self._group,
            consume_type=ConsumeType.PULL,
            subscriptions=[Subscription.of_tags(topic, "*", 0) for topic in topics],
        )

    def _each(
        self, addresses: Sequence[str], operation: Callable[[], Operation[Any]]
    ) -> dict[str, PymqError]:
        """Ask each address; return those that failed."""
        answers = self._open().ask_many([(address, operation()) for address in addresses])
        return {
            address: answer
            for address, answer in zip(addresses, answers, strict=True)
            if isinstance(answer, PymqError)
        }

    def _failed(self, broker_name: str, reason: PymqError) -> None:
        self._away_until_s[broker_name] = self._monotonic_s() + AWAY_S
        self._say(broker_name, f" at broker {broker_name}", reason)

    def _say(self, key: str, where: str, reason: PymqError) -> None:
        """Log a failure, once for each cause."""
        text = type(reason).__name__
        if self._said.get(key) == text:
            return
        self._said[key] = text
        cure = ""
        if isinstance(reason, GroupNotExist):
            cure = (
                f" Create the group there (mqadmin updateSubGroup -g {self._group}, or "
                "pymq group create), or set autoCreateSubscriptionGroup=true."
            )
        LOG.warning(
            "the progress of group %s is not committed%s: %s.%s The query is not affected, and "
            "tries again every %.0f s (option commitOffsetsToBroker)",
            self._group,
            where,
            reason,
            cure,
            AWAY_S,
        )
