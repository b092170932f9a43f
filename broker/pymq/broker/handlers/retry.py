"""Messages that consumers send back: CONSUMER_SEND_MSG_BACK (36).

Source: RocketMQ AbstractSendMessageProcessor.consumerSendMsgBack.
"""

from collections.abc import Mapping

from pymq.broker.cold_reads import ColdReads
from pymq.broker.config import BrokerConfig
from pymq.broker.log_writer import LogWriter
from pymq.broker.put_answer import is_kept, send_answer
from pymq.broker.retry import Retries
from pymq.broker.statistics.broker_statistics import BrokerStatistics
from pymq.errors import CorruptRecord, OffsetOutOfRange, refusal
from pymq.net.dispatcher import Handler, Request
from pymq.protocol import names
from pymq.protocol.codes import MQ_VERSION_RETRIES, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.retry import SendBackRequest
from pymq.protocol.message import RETRY_TOPIC, decode_properties
from pymq.protocol.record import Record, decode_record


class RetryHandlers:
    """Stores messages once more that could not be consumed.

    Args:
        address: of this broker, for remarks.
        retries: says where they go.
        responses: waits until records are in memory.
    """

    def __init__(
        self,
        config: BrokerConfig,
        address: str,
        cold_reads: ColdReads,
        retries: Retries,
        log_writer: LogWriter,
        statistics: BrokerStatistics,
    ) -> None:
        self._config = config
        self._address = address
        self._cold_reads = cold_reads
        self._retries = retries
        self._log_writer = log_writer
        self._statistics = statistics

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    async def send_back(self, request: Request) -> Command:
        """CONSUMER_SEND_MSG_BACK (36); answered when the next try is as safe as a sent message.

        SUCCESS has the consumer commit beyond the message: whatever may be lost with this broker
        is refused, as a send would be answered, and the consumer keeps it or sends it once more.
        """
        header = SendBackRequest.from_fields(request.fields)
        if not self._config.is_writable:
            self._retries.check_group(header.group)
            raise refusal(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._address}] sending message is forbidden",
            )
        config, queue_id = self._retries.retry_queue(header.group, is_unit=header.unit_mode)
        if queue_id is None:
            return request.response(ResponseCode.SUCCESS)
        says_times = request.command.version >= MQ_VERSION_RETRIES
        failed = await self._find(header.offset)
        again = self._retries.next_try(
            failed,
            config,
            queue_id,
            delay_level=header.delay_level,
            times_max=header.max_reconsume_times if says_times else None,
        )
        result, outcome = await self._log_writer.append_and_tell(again)
        if not is_kept(outcome):
            code, remark = send_answer(result, outcome)
            raise refusal(code, remark or outcome.value)
        topic = decode_properties(failed.properties).get(RETRY_TOPIC, failed.topic)
        self._statistics.sent_back(header.group, topic)
        if again.topic.startswith(names.DEAD_LETTER_PREFIX):
            self._statistics.buried(header.group, header.origin_topic or topic)
        return request.response(ResponseCode.SUCCESS)

    async def _find(self, offset: int) -> Record:
        try:
            return decode_record(await self._cold_reads.record_view(offset), verify=True)
        except (OffsetOutOfRange, CorruptRecord) as error:
            raise refusal(
                ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}: {error}"
            ) from error
