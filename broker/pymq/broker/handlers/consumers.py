"""What administrators want of running consumers, which the broker asks for it: 223, 307, 309.

Source: RocketMQ AdminBrokerProcessor.callConsumer, Broker2Client.
"""

import asyncio
import logging
from collections.abc import Mapping

from pymq.broker.cold_reads import ColdReads
from pymq.broker.config import BrokerConfig
from pymq.broker.state.clients import ClientTable
from pymq.broker.state.groups import GroupTable
from pymq.broker.state.topics import TopicTable
from pymq.errors import (
    CorruptRecord,
    LocalProtocolError,
    OffsetOutOfRange,
    PymqError,
    RequestTimeout,
    refusal,
)
from pymq.net.dispatcher import Handler, Request
from pymq.net.server import ServerConnection
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.client_bodies import ConsumerStatus
from pymq.protocol.codes import (
    MQ_VERSION_ASKED,
    MQ_VERSION_OFFSETS,
    LanguageCode,
    RequestCode,
    ResponseCode,
)
from pymq.protocol.command import Command
from pymq.protocol.headers.groups import (
    ConsumeDirectlyRequest,
    ConsumerStatusRequest,
    MemberRequest,
)
from pymq.protocol.record import parse_offset_message_id

_log = logging.getLogger(__name__)

#: How long a consumer may take to answer: official tools wait 15 s for this.
ANSWER_S = 10.0
#: The same when all members of a group are asked where they are: official tools wait 5 s for that,
#: and would hear of no member at all because of one that is silent.
STATUS_S = 4.0


class ConsumerHandlers:
    """Passes requests on to consumers, and their answers back."""

    def __init__(
        self,
        config: BrokerConfig,
        clients: ClientTable,
        topics: TopicTable,
        groups: GroupTable,
        cold_reads: ColdReads,
    ) -> None:
        self._config = config
        self._clients = clients
        self._topics = topics
        self._groups = groups
        self._cold_reads = cold_reads

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.status,
        }

    async def running_info(self, request: Request) -> Command:
        """GET_CONSUMER_RUNNING_INFO (307): queues, subscriptions, threads of one consumer."""
        member = MemberRequest.from_fields(request.fields)
        return await self._ask_member(member, request, request.fields, request.body)

    async def consume_directly(self, request: Request) -> Command:
        """CONSUME_MESSAGE_DIRECTLY (309): have one consumer consume one message now."""
        header = ConsumeDirectlyRequest.from_fields(request.fields)
        fields = {**(request.fields or {}), "brokerName": self._config.name}
        topic = self._topics.find(header.topic or "")
        if topic is not None:
            fields["topicSysFlag"] = str(topic.topic_sys_flag)
        group = self._groups.known(header.consumer_group)
        if group is not None:
            fields["groupSysFlag"] = str(group.group_sys_flag)
        body = await self._message(header.message_id or "")
        return await self._ask_member(header, request, fields, body)

    async def _message(self, message_id: str) -> bytes:
        """Return the record with a message id of the broker."""
        try:
            _, offset = parse_offset_message_id(message_id)
            return bytes(await self._cold_reads.record_view(offset))
        except (LocalProtocolError, OffsetOutOfRange, CorruptRecord) as error:
            raise refusal(
                ResponseCode.SYSTEM_ERROR, f"no message {message_id!r} on this broker: {error}"
            ) from error

    async def _ask_member(
        self,
        member: MemberRequest,
        request: Request,
        fields: dict[str, str] | None,
        body: bytes | memoryview,
    ) -> Command:
        """Pass a request on to a member of a group; return its answer, whatever it says.

        Raises:
            BrokerError: the member is not online, too old, silent, or gone meanwhile.
        """
        connection = self._find(member)
        names = f"<{member.consumer_group}> <{member.client_id}>"
        asked = Command(request.command.code, fields, body, language=LanguageCode.JAVA)
        try:
            answer = await connection.ask(asked, ANSWER_S)
        except RequestTimeout as error:
            raise refusal(
                ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer {names} Timeout: {error}"
            ) from error
        except PymqError as error:
            raise refusal(
                ResponseCode.SYSTEM_ERROR, f"invoke consumer {names} Exception: {error}"
            ) from error
        return request.response(answer.code, answer.remark, answer.fields, answer.body)

    def _find(self, member: MemberRequest) -> ServerConnection:
        group = self._clients.consumer_group(member.consumer_group)
        found = None if group is None else group.find(member.client_id)
        if found is None:
            raise refusal(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{member.consumer_group}> <{member.client_id or 'null'}> not online",
            )
        connection, client = found
        if client.version < MQ_VERSION_ASKED:
            raise refusal(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{member.client_id}> Version <{client.version}> too low to finish, "
                "please upgrade it to V3_1_8_SNAPSHOT",
            )
        return connection

    async def status(self, request: Request) -> Command:
        """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223): where the members of a group are.

        Members that do not answer are left out.
        """
        header = ConsumerStatusRequest.from_fields(request.fields)
        group = self._clients.consumer_group(header.group)
        if group is None:
            raise refusal(
                ResponseCode.SYSTEM_ERROR,
                f"No Any Consumer online in the consumer group: [{header.group}]",
            )
        for client in group.members.values():
            if client.version < MQ_VERSION_OFFSETS:
                raise refusal(
                    ResponseCode.SYSTEM_ERROR,
                    f"the client does not support this feature. version={client.version}",
                )
        asked = [
            (connection, client.client_id)
            for connection, client in group.members.items()
            if header.client_id in (None, "", client.client_id)
        ]
        answers = await asyncio.gather(
            *(self._status_of(connection, header) for connection, _ in asked)
        )
        members = {
            client_id: offsets
            for (_, client_id), offsets in zip(asked, answers, strict=True)
            if offsets is not None
        }
        body = ConsumerStatus(members=members)
        return request.response(ResponseCode.SUCCESS, body=body.encode())

    async def _status_of(
        self, connection: ServerConnection, header: ConsumerStatusRequest
    ) -> dict[MessageQueue, int] | None:
        fields = ConsumerStatusRequest(topic=header.topic, group=header.group).to_fields()
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        try:
            answer = await connection.ask(
                Command(code, fields, language=LanguageCode.JAVA), STATUS_S
            )
            if answer.code != ResponseCode.SUCCESS or not answer.body:
                return None
            return ConsumerStatus.decode(answer.body).offsets
        except PymqError as error:
            _log.warning("status of group %s at %s: %s", header.group, connection.peer, error)
            return None
