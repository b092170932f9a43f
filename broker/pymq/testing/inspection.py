"""What tests ask a cluster about what it holds."""

from collections.abc import Sequence

from pymq.broker.registration import reachable_address
from pymq.client.cluster.network import Network
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.client.threaded.admin import Admin
from pymq.errors import RouteNotFound
from pymq.protocol.message import RETRY_TOPIC, ReceivedMessage
from pymq.protocol.names import dead_letter_topic, popped_topic
from pymq.protocol.record import decode_records
from pymq.testing.members import Member

#: A broker that runs answers, however busy the machine.
ANSWER_S = 30.0


class Inspection:
    """Answers of the brokers, asked as any client asks; nobody's offsets change.

    Each call takes milliseconds and needs no event loop, so that it may be used in coroutines, too.
    """

    _members: Sequence[Member]

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
        """Return if all messages can be seen.

        Raises:
            ClientClosed: a broker is stopped.
        """
        raise NotImplementedError

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted, without those of the system and of groups.

        What groups have of their own is in ``dead_letters``, and ``messages("%RETRY%group")``.

        Raises:
            ClientClosed: a broker is stopped.
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
            ClientClosed: a broker is stopped.
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
            ClientClosed: a broker is stopped.
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
            ClientClosed: a broker is stopped.
            PymqError: a broker could not be asked.
        """
        self._check_complete()
        with Admin(self.name_server, timeout_s=ANSWER_S, network=self._network) as admin:
            queues = admin.offsets.lag(group, topic)
        return sum(queue.lag for queue in queues) if queues else None
