"""What ``pymq doctor`` looks at in a consumer group: settings, members, dead letters, lag."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pymq.cli import output
from pymq.cli.findings import Finding, State, acl_advice
from pymq.cli.group_commands import created_again, enabled_alone, is_made_alike
from pymq.client.cluster.network import PLAIN, Network
from pymq.client.cluster.routes import MASTER_ID
from pymq.client.group.group_progress import QueueLag
from pymq.client.group.group_watch import wanted
from pymq.client.threaded.admin import Admin
from pymq.errors import BrokerError, GroupNotExist, PymqError, RouteNotFound
from pymq.protocol.bodies import (
    ConsumerConnections,
    ConsumeType,
    GroupConfig,
    MessageModel,
    MessageQueue,
)
from pymq.protocol.codes import ResponseCode
from pymq.protocol.message import DEAD_LETTER_REASON, RETRY_TOPIC
from pymq.protocol.names import dead_letter_topic, is_retry_topic, popped_topic, retry_topic

_POLL_S = 0.1
#: So many members of a group are asked what they subscribe to.
MEMBERS_MAX = 50
#: What failed within this time fails now, for all that is known; older failures are history, which
#: must not have a script that watches a group complain as long as brokers keep them.
RECENT_S = 3600
_SILENT = int(ResponseCode.CONSUME_MSG_TIMEOUT)


#: How members get messages -> why a queue may stand.
_WHY_STANDING: dict[str, str] = {
    ConsumeType.PUSH: "a handler hangs or fails there",
    ConsumeType.PULL: "its members pull, and poll nothing there, or do not commit what they polled",
    ConsumeType.POP: "its members receive, and take nothing there, or do not acknowledge it",
}


@dataclass(frozen=True, slots=True)
class _Kept:
    """Messages in a topic.

    Attributes:
        count: how many.
        newest_ms: when the newest was stored.
        queue, offset: where it is.
        is_hidden: is some of them where nobody may read? Older releases of RocketMQ make topics of
            dead letters so.
    """

    count: int
    newest_ms: int
    queue: MessageQueue
    offset: int
    is_hidden: bool

    @property
    def is_recent(self) -> bool:
        """Was the newest stored a short time ago?"""
        return self.newest_ms > (time.time() - RECENT_S) * 1000

    def __str__(self) -> str:
        return f"{self.count}, the newest stored at {output.time_text(self.newest_ms)},"


class GroupDiagnosis:
    """Looks at one group.

    Args:
        admin: of the cluster.
        group: which.
        topic: that it should read; ``None``: whatever it reads.
        watch_s: how long lag is watched before it is said to stand.
        network: of the admin, with its namespace.
    """

    def __init__(
        self,
        admin: Admin,
        group: str,
        topic: str | None,
        watch_s: float,
        network: Network = PLAIN,
    ) -> None:
        self._admin = admin
        self._group = group
        self._topic = topic
        self._watch_s = watch_s
        self._network = network

    def run(self) -> Iterator[Finding]:
        """Yield what is found."""
        admin, group = self._admin, self._group
        try:
            configs = admin.groups.config(group)
            members = admin.groups.members(group)
        except GroupNotExist:
            yield Finding(
                "group",
                State.WRONG,
                f"no broker knows group {group!r}",
                f"pymq group create {group}, or let its first consumer do it "
                "(autoCreateSubscriptionGroup)",
            )
            return
        except PymqError as error:
            text = f"it cannot be asked for: {error}"
            yield Finding("group", State.WRONG, text, acl_advice(error))
            return
        yield from self._disabled(configs)
        count, topic = len(members.connections), self._topic
        if not count:
            yield Finding(
                "group",
                State.WRONG,
                f"{group!r} has no members: nobody consumes",
                "start a consumer of the group; one that runs may use another name server or group",
            )
        elif topic is not None and topic not in members.subscriptions:
            yield Finding(
                "group",
                State.WRONG,
                f"{group!r} has members ({count}), and none subscribes to {topic!r} (but to "
                f"{', '.join(sorted(members.subscriptions)) or 'nothing'})",
                "members of a group all subscribe to the same: is the consumer's topic right?",
            )
        else:
            yield Finding("group", State.OK, f"{group!r} has members: {count}")
        yield from self._subscriptions(members)
        yield from self._failures(members)
        yield from self._lag(members)

    def _disabled(self, configs: dict[str, GroupConfig]) -> Iterator[Finding]:
        """Look at whether brokers let the group consume."""
        off = [name for name, config in configs.items() if not config.consume_enable]
        if not off:
            return
        try:
            info = self._admin.cluster()
        except PymqError as error:
            text = f"{self._group!r} may not consume on {', '.join(off)}; where they are: {error}"
            yield Finding("group", State.WRONG, text, acl_advice(error))
            return
        cluster_of = {name: one for one, names in info.clusters.items() for name in names}
        for cluster in sorted({cluster_of.get(name, "") for name in off}):
            there = [name for name in configs if cluster_of.get(name, "") == cluster]
            names = [name for name in there if name in off]
            first = configs[there[0]]
            if cluster and all(is_made_alike(first, configs[name]) for name in there):
                advice = created_again(self._group, first, cluster)
            else:
                known = {name: one.addresses.get(MASTER_ID) for name, one in info.brokers.items()}
                whole = self._network.wrap(self._group)  # mqadmin knows no namespaces
                advice = "; ".join(
                    enabled_alone(whole, configs[name], known.get(name) or f"ADDRESS_OF_{name}")
                    for name in names
                )
            text = f"{self._group!r} may not consume on {', '.join(names)}"
            yield Finding("group", State.WRONG, text, advice)

    def _subscriptions(self, members: ConsumerConnections) -> Iterator[Finding]:
        """Ask the members: a broker knows only what the latest heartbeat of any of them said."""
        admin, group = self._admin, self._group
        said: dict[frozenset[object], tuple[list[str], str]] = {}
        for client_id in [one.client_id for one in members.connections][:MEMBERS_MAX]:
            try:
                found = admin.groups.running_info(group, client_id).subscriptions
            except PymqError as error:
                if isinstance(error, BrokerError) and error.code == _SILENT:
                    yield Finding(
                        "group",
                        State.WRONG,
                        f"member {client_id} of {group!r} does not answer its broker",
                        "its process is stopped, or hangs: its queues stand still until it goes "
                        "on, or is ended and others get them",
                    )
                continue  # Members that pull, and those of some other clients, cannot be asked.
            own = [one for one in found if not is_retry_topic(one.topic)]
            key = frozenset((one.topic, *wanted(one)) for one in own)
            text = ", ".join(sorted(f"{one.topic} ({one.expression})" for one in own))
            said.setdefault(key, ([], text))[0].append(client_id)
        if len(said) > 1:
            each = "; ".join(f"{', '.join(names)}: {text}" for names, text in said.values())
            yield Finding(
                "group",
                State.WRONG,
                f"the members of {group!r} subscribe differently: {each}",
                "each queue is read by one member alone, so what the others want of it is lost to "
                "the group: let all subscribe to the same, or give them groups of their own",
            )

    def _failures(self, members: ConsumerConnections) -> Iterator[Finding]:
        """Look for messages that the group failed to consume: they do not count as lag."""
        group = self._group
        retries, given_up = retry_topic(group), dead_letter_topic(group)
        try:
            tried, dead = self._kept(retries), self._kept(given_up)
        except PymqError as error:
            text = f"whether {group!r} failed at messages is not known: {error}"
            yield Finding("group", State.WRONG, text, acl_advice(error))
            return
        if tried is not None and tried.is_recent:
            yield Finding(
                "group",
                State.NOTE,
                f"{group!r} failed at messages, and got them again: {tried} in {retries}",
                f"see which, and look at the logs of its members: pymq tail {retries}",
            )
        if dead is not None:
            own = [one for one in members.subscriptions if not is_retry_topic(one)]
            topic = own[0] if len(own) == 1 else "TOPIC"
            hidden = f"pymq topic update {given_up} --perm 6 lets them be read; " * dead.is_hidden
            yield Finding(
                "group",
                State.WRONG if dead.is_recent else State.NOTE,
                f"{group!r} gave up messages: {dead} in {given_up}{self._about(dead)}",
                f"{hidden}see which: pymq tail {given_up}; once their cause is mended, send them "
                f"again: pymq copy {given_up} {topic}",
            )

    def _kept(self, topic: str) -> "_Kept | None":
        """Return what is in a topic of the group; ``None``: nothing."""
        try:
            bounds = self._admin.topics.status(topic)
            readable = self._admin.topics.route(topic).read_queues
        except RouteNotFound:
            return None
        filled = [one for one in bounds.items() if one[1].max_offset > one[1].min_offset]
        if not filled:
            return None
        queue, last = max(filled, key=lambda one: one[1].last_update_timestamp_ms)
        count = sum(one.max_offset - one.min_offset for _, one in filled)
        is_hidden = any(one not in readable for one, _ in filled)
        return _Kept(count, last.last_update_timestamp_ms, queue, last.max_offset - 1, is_hidden)

    def _about(self, kept: "_Kept") -> str:
        """Return where the newest of some messages is from, and why it is there."""
        try:
            newest = self._admin.messages.by_offset(kept.queue, kept.offset).properties
        except PymqError:
            return ""  # it may have gone meanwhile
        topic, reason = newest.get(RETRY_TOPIC), newest.get(DEAD_LETTER_REASON)
        if topic is not None:
            unwrap = self._network.unwrap
            topic = unwrap(popped_topic(unwrap(topic), self._group))
        return (f", of topic {topic}" if topic else "") + (f": {reason}" if reason else "")

    def _lags(self) -> list[QueueLag]:
        """Return how far the group is, also with what is to be tried again."""
        lag, group = self._admin.offsets.lag, self._group
        found = lag(group, self._topic)
        return found if self._topic is None else [*found, *lag(group, retry_topic(group))]

    def _lag(self, members: ConsumerConnections) -> Iterator[Finding]:
        if members.message_model == MessageModel.BROADCASTING:  # a reset may have left offsets
            text = "it is not known: each member gets everything, and keeps its own offsets"
            yield Finding("lag", State.NOTE, text)
            return
        try:
            first = self._lags()
        except PymqError as error:
            yield Finding("lag", State.WRONG, f"it is not known: {error}", acl_advice(error))
            return
        behind = {one.queue: one for one in first if one.lag}
        if not behind:
            text = (
                "the group has committed up to the end; messages that wait for another try, or are "
                "popped, are not counted"
                if first
                else "the group has committed nothing yet"
            )
            yield Finding("lag", State.OK if first else State.NOTE, text)
            return
        total = sum(one.lag for one in behind.values())
        again = sum(one.lag for one in behind.values() if is_retry_topic(one.queue.topic))
        left = f"{total} messages are left" + (f", {again} of them for another try" * bool(again))
        try:
            standing = self._standing(self._lags, behind)
        except PymqError as error:
            text = f"{left}; whether it moves is not known: {error}"
            yield Finding("lag", State.WRONG, text, acl_advice(error))
            return
        if not standing:
            yield Finding("lag", State.OK, f"{left}, and it moves")
            return
        for one in standing:
            queue = one.queue
            yield Finding(
                "lag",
                State.WRONG,
                f"{queue.topic} {queue.broker_name}:{queue.queue_id} stands at offset "
                f"{one.consumer_offset}, {one.lag} messages behind, for {self._watch_s:g} s at "
                "least",
                self._how_to_go_on(one, members),
            )

    def _how_to_go_on(self, lag: QueueLag, members: ConsumerConnections) -> str:
        if not members.connections:
            return "start a consumer of the group"
        queue, offset = lag.queue, lag.consumer_offset
        at = f"--queue {queue.broker_name}:{queue.queue_id}"
        why = _WHY_STANDING.get(members.consume_type or "", _WHY_STANDING[ConsumeType.PUSH])
        return (
            f"{why}: look at the log of its members, and at the message (pymq message at "
            f"{queue.topic} {offset} {at}); to pass it: pymq group reset {self._group} --topic "
            f"{queue.topic} --to {offset + 1} {at}"
        )

    def _standing(
        self, ask: Callable[[], list[QueueLag]], behind: dict[MessageQueue, QueueLag]
    ) -> list[QueueLag]:
        """Return the queues in which the group does not move while it is watched."""
        pause, deadline_s = threading.Event(), time.monotonic() + self._watch_s
        left = dict(behind)
        while left and time.monotonic() < deadline_s:
            pause.wait(_POLL_S)
            for one in ask():
                before = left.get(one.queue)
                if before is not None and one.consumer_offset != before.consumer_offset:
                    del left[one.queue]
        return list(left.values())
