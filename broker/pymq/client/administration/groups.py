"""Consumer groups: their settings, and who is in them."""

from collections.abc import Iterable

from pymq.client import operations
from pymq.client.administration.asking import Asking
from pymq.client.administration.topics import Topics
from pymq.client.group.group_progress import merged_connections
from pymq.errors import ConsumerNotOnline, GroupNotExist, PymqError
from pymq.protocol.bodies import ConsumerConnections, GroupConfig
from pymq.protocol.client_bodies import ConsumerRunningInfo
from pymq.protocol.codes import ResponseCode
from pymq.protocol.names import BUILT_IN_GROUPS, check_group, dead_letter_topic, retry_topic

#: Brokers wait 10 s for what a member answers.
MEMBER_S = 20.0


class Groups:
    """Consumer groups of the brokers that the name servers know: ``admin.groups``."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._topics = Topics(asking)

    async def names(self, *, with_system: bool = False, cluster: str | None = None) -> list[str]:
        """Return the names of all consumer groups, sorted.

        Args:
            with_system: also those that every broker has from the start.
            cluster: only of the brokers of this cluster.

        Raises:
            ConfigurationError: there is no such cluster.
            BrokersFailed: some masters did not answer.
            PymqError: the only master did not.
        """
        brokers = await self._asking.readers(cluster)
        tables = await self._asking.every(brokers, operations.group_table)
        found = {group for table in tables.values() for group in table.groups}
        return sorted(found if with_system else found - set(BUILT_IN_GROUPS))

    async def config(self, group: str) -> dict[str, GroupConfig]:
        """Return the settings of a group: name of the master -> what it has.

        Raises:
            GroupNotExist: no master knows the group.
            BrokersFailed: some masters did not answer.
            PymqError: the only master did not.
        """
        check_group(group)
        brokers = await self._asking.readers()
        tables = await self._asking.every(brokers, operations.group_table)
        found = {n: table.groups[group] for n, table in tables.items() if group in table.groups}
        if not found:
            raise no_group(group, brokers)
        return found

    async def create(self, config: GroupConfig | str, *, cluster: str | None = None) -> None:
        """Create a consumer group on every master, or change it.

        Args:
            config: its settings, or its name for RocketMQ's defaults.
            cluster: only on the masters of this cluster.

        Raises:
            LocalProtocolError: the name is illegal.
            BrokersFailed: some masters did not do it; the others have.
            PymqError: the only master did not.
        """
        settings = config if isinstance(config, GroupConfig) else GroupConfig(group=config)
        check_group(settings.group)
        masters = await self._asking.changers(cluster)
        await self._asking.every(masters, lambda: operations.update_group(settings))

    async def delete(
        self,
        group: str,
        *,
        forget_offsets: bool = False,
        with_dead_letters: bool = False,
        cluster: str | None = None,
    ) -> None:
        """Delete a consumer group from every master, and its retry topic as ``Topics.delete`` does.

        What waits in ``%RETRY%group`` for another try is lost. Its dead letters stay, in topic
        ``%DLQ%group``. Members that are connected bring the group and its retry topic back, where
        brokers create groups (autoCreateSubscriptionGroup). May be repeated.

        Args:
            group: its name.
            forget_offsets: also what it committed.
            with_dead_letters: also its dead letters, with their topic.
            cluster: only on the masters of this cluster.

        Raises:
            BrokersFailed: some masters did not do it, or some name servers did not forget a route;
                the others have. A note says so if the group is deleted and a topic of it is not.
            ConfigurationError: see ``Topics.delete``.
            PymqError: the only master, or the only name server, did not.
        """
        check_group(group)
        masters = await self._asking.changers(cluster)
        await self._asking.every(
            masters, lambda: operations.delete_group(group, forget_offsets=forget_offsets)
        )
        topics = [retry_topic(group), *([dead_letter_topic(group)] if with_dead_letters else [])]
        for at, topic in enumerate(topics):
            try:
                await self._topics.delete(topic, cluster=cluster)
            except PymqError as error:
                left = " and ".join(topics[at:])
                error.add_note(
                    f"group {group!r} is deleted, {left} perhaps not everywhere: delete what is "
                    "left as a topic (pymq topic delete)"
                )
                raise

    async def members(self, group: str) -> ConsumerConnections:
        """Return the live members of a group, merged over the masters; perhaps none.

        Raises:
            BrokersFailed: some masters did not answer.
            PymqError: the only master did not.
        """
        return merged_connections((await connections(self._asking, group)).values())

    async def running_info(
        self, group: str, client_id: str, *, stacks: bool = False
    ) -> ConsumerRunningInfo:
        """Return what a member says that it is at: subscriptions, queues, settings.

        Args:
            group: its name.
            client_id: of one of its ``members``.
            stacks: also what each of its threads does.

        Raises:
            ConsumerNotOnline: no master knows the member.
            BrokerSystemError: it is of a kind that does not answer, as pull consumers are.
            BrokerError: with code 207 (CONSUME_MSG_TIMEOUT): it is silent.
            PymqError: a master did not answer.
        """
        for name, known in (await connections(self._asking, group)).items():
            if any(one.client_id == client_id for one in known.connections):
                address = (await self._asking.readers())[name]
                asked = operations.running_info(group, client_id, stacks=stacks)
                return await self._asking.one(address, asked, name=name, timeout_s=MEMBER_S)
        raise ConsumerNotOnline(
            f"group {group!r} has no member {client_id!r} now; `pymq group members {group}` lists "
            "those it has",
            code=ResponseCode.CONSUMER_NOT_ONLINE,
        )


def no_group(group: str, brokers: Iterable[str]) -> GroupNotExist:
    """Return the error for a group that some brokers, by their names, do not have."""
    return GroupNotExist(
        f"group {group!r} is not known to {', '.join(brokers)}; create it with `pymq group "
        f"create {group}` (mqadmin updateSubGroup), or let its first consumer do so "
        "(autoCreateSubscriptionGroup)",
        code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    )


async def connections(asking: Asking, group: str) -> dict[str, ConsumerConnections]:
    """Return the live members of a group that each broker knows, by its name.

    Raises:
        BrokersFailed: some masters did not answer.
        PymqError: the only master did not.
    """
    check_group(group)
    brokers = await asking.readers()

    def ask() -> operations.Operation[ConsumerConnections]:
        return operations.consumer_connections(group)

    answers = await asking.answers(brokers, ask)
    online = {n: one for n, one in answers.items() if not isinstance(one, ConsumerNotOnline)}
    return asking.complete(ask().description, online)
