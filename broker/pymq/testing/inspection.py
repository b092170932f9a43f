"""What tests ask a cluster about what it holds."""

import threading
import time
from collections.abc import Sequence

from pymq.broker.registration import reachable_address
from pymq.client.cluster.network import Network
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.client.threaded.admin import Admin
from pymq.errors import ClientClosed, RouteNotFound
from pymq.protocol.message import RETRY_TOPIC, ReceivedMessage
from pymq.protocol.names import dead_letter_topic, popped_topic
from pymq.protocol.record import decode_records
from pymq.testing.members import Member
from pymq.testing.naming import REGISTERED_S, NamesrvMember

#: A broker that runs answers, however busy the machine.
ANSWER_S = 30.0
_POLL_S = 0.02


class Inspection:
    """Answers of the brokers, asked as any client asks; nobody's offsets change.

    Each call takes milliseconds and needs no event loop, so that it may be used in coroutines, too.
    """

    _members: Sequence[Member]
    _naming: NamesrvMember | None

    @property
    def name_server(self) -> str:
        """``host:port`` of the name server."""
        raise NotImplementedError

    @property
    def _network(self) -> Network:
        """Where the brokers are reached, whatever they advertise."""
        configs = [member.config for member in self._members]
        return Network(
            broker_address_map={
                config.advertised_address: reachable_address(config.bind_address)
                for config in configs
                if config.advertised_address is not None
            }
        )

    def _check_complete(self) -> None:
        """Return if all messages can be seen; waits while the name server comes to know brokers.

        Raises:
            ClientClosed: a broker is stopped, or the name server does not know it.
        """
        late_s = time.monotonic() + REGISTERED_S
        while unknown := self._unknown():
            if time.monotonic() > late_s:
                raise ClientClosed(
                    f"{', '.join(unknown)}: not registered at the name server for "
                    f"{REGISTERED_S:g} s, so nobody knows what is there; restart the broker, too"
                )
            threading.Event().wait(_POLL_S)

    def _unknown(self) -> list[str]:
        """Return the groups of brokers that run, and that the name server, which runs, lacks."""
        names = dict.fromkeys(member.name for member in self._members)
        running = [(one.name, one.broker) for one in self._members if one.broker is not None]
        if stopped := sorted(names.keys() - {name for name, _ in running}):
            raise ClientClosed(f"{', '.join(stopped)}: stopped, so nobody knows what is there")
        server = self._naming.server if self._naming is not None else None
        if server is None:
            return []  # Who asks it hears that it does not answer.
        # All of a group: what slaves alone tell of a topic is that it has no queues.
        return sorted({name for name, one in running if not server.is_registered(one.address)})

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted, without those of the system and of groups.

        What groups have of their own is in ``dead_letters``, and ``messages("%RETRY%group")``.

        Raises:
            ClientClosed: a broker is stopped, or the name server does not know it.
            PymqError: the name server could not be asked.
        """
        self._check_complete()
        with Admin(self.name_server, timeout_s=ANSWER_S, network=self._network) as admin:
            return admin.topics.names()

    def messages(self, topic: str) -> list[ReceivedMessage]:
        """Return everything that is stored in a topic, in the order of storing.

        Args:
            topic: its name; ``%DLQ%group`` has the dead letters of a group, ``%RETRY%group`` what
                it tried again. Without such a topic there is nothing.

        Raises:
            ClientClosed: a broker is stopped, or the name server does not know it.
            PymqError: a broker could not be asked.
        """
        self._check_complete()
        found = []
        with BlockingClient(self.name_server, timeout_s=ANSWER_S, network=self._network) as client:
            try:
                queues = client.read_queues(topic)
            except RouteNotFound:
                return []
            for queue, (first, end) in client.bounds(queues).items():
                for chunk in client.pull_range(queue, first, end):
                    found += [
                        ReceivedMessage.from_record(record, queue.broker_name)
                        for record in decode_records(chunk.buffer)
                    ]
        # Of one broker, the place in its log tells more than the time.
        found.sort(key=lambda one: (one.store_timestamp_ms, one.physical_offset))
        return found

    def dead_letters(self, group: str) -> list[ReceivedMessage]:
        """Return the messages that a group has given up, in the order in which that happened.

        Their ``topic`` is the one that the group read them from; why ``reject`` was called is
        ``properties.get("DLQ_REASON")``.

        Args:
            group: its name. Without dead letters there is nothing.

        Raises:
            ClientClosed: a broker is stopped, or the name server does not know it.
            PymqError: a broker could not be asked.
        """
        found = self.messages(dead_letter_topic(group))
        for message in found:
            topic = message.properties.get(RETRY_TOPIC, message.topic)
            message.topic = popped_topic(topic, group)
        return found

    def lag(self, group: str, topic: str | None = None) -> int | None:
        """Return how many messages a group has not consumed yet, or not committed.

        Messages that wait for their next attempt are in no topic of the group, so they do not
        count.

        Args:
            group: its name.
            topic: only there; otherwise in all topics that it committed offsets for.

        Returns:
            None if it has committed nothing there yet.

        Raises:
            ClientClosed: a broker is stopped, or the name server does not know it.
            PymqError: a broker could not be asked.
        """
        self._check_complete()
        with Admin(self.name_server, timeout_s=ANSWER_S, network=self._network) as admin:
            queues = admin.offsets.lag(group, topic)
        return sum(queue.lag for queue in queues) if queues else None
