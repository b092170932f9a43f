"""What ``pymq doctor`` looks at in a consumer group: its settings, its members, its lag."""

import threading
import time
from collections.abc import Callable, Iterator

from pymq.cli.findings import Finding, State, acl_advice
from pymq.client.group.group_progress import QueueLag
from pymq.client.group.group_watch import wanted
from pymq.client.threaded.admin import Admin
from pymq.errors import BrokerError, GroupNotExist, PymqError
from pymq.protocol.bodies import ConsumerConnections, MessageQueue
from pymq.protocol.codes import ResponseCode
from pymq.protocol.names import is_retry_topic

_POLL_S = 0.1
#: So many members of a group are asked what they subscribe to.
MEMBERS_MAX = 50
_SILENT = int(ResponseCode.CONSUME_MSG_TIMEOUT)


class GroupDiagnosis:
    """Looks at one group.

    Args:
        admin: of the cluster.
        group: which.
        topic: that it should read; ``None``: whatever it reads.
        watch_s: how long lag is watched before it is said to stand.
    """

    def __init__(self, admin: Admin, group: str, topic: str | None, watch_s: float) -> None:
        self._admin = admin
        self._group = group
        self._topic = topic
        self._watch_s = watch_s

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
        off = [name for name, config in configs.items() if not config.consume_enable]
        if off:
            yield Finding(
                "group",
                State.WRONG,
                f"{group!r} may not consume on {', '.join(off)}",
                f"mqadmin updateSubGroup -g {group} -s true",
            )
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
        yield from self._lag(has_members=bool(count))

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

    def _lag(self, *, has_members: bool) -> Iterator[Finding]:
        admin, group = self._admin, self._group
        try:
            first = admin.offsets.lag(group, self._topic)
        except PymqError as error:
            yield Finding("lag", State.WRONG, f"it is not known: {error}", acl_advice(error))
            return
        behind = {one.queue: one for one in first if one.lag}
        if not behind:
            text = "nothing is left to consume" if first else "the group has committed nothing yet"
            yield Finding("lag", State.OK if first else State.NOTE, text)
            return
        total = sum(one.lag for one in behind.values())
        try:
            standing = self._standing(lambda: admin.offsets.lag(group, self._topic), behind)
        except PymqError as error:
            text = f"{total} messages are left; whether it moves is not known: {error}"
            yield Finding("lag", State.WRONG, text, acl_advice(error))
            return
        if not standing:
            yield Finding("lag", State.OK, f"{total} messages are left, and it moves")
            return
        advice = (
            "a handler hangs or fails there: look at its log, and at the message (pymq message at "
            f"{standing[0].queue.topic} {standing[0].consumer_offset}); pymq group reset passes it"
            if has_members
            else "start a consumer of the group"
        )
        for one in standing:
            queue = one.queue
            yield Finding(
                "lag",
                State.WRONG,
                f"{queue.topic} {queue.broker_name}:{queue.queue_id} stands at offset "
                f"{one.consumer_offset}, {one.lag} messages behind, for {self._watch_s:g} s at "
                "least",
                advice,
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
