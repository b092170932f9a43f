"""Takes back messages that wait for a delivery time of their own."""

from pymq.client.operations import recall_message
from pymq.client.sending.producer_config import ProducerConfig
from pymq.client.sending.producer_parts import ProducerParts
from pymq.client.sending.receipts import SendReceipt
from pymq.errors import LocalProtocolError, NoPermission, RemoteProtocolError
from pymq.protocol.recall_handles import RecallHandle


class Recalls:
    """What ``Producer`` can take back."""

    _config: ProducerConfig
    _parts: ProducerParts

    async def recall(self, receipt: SendReceipt | str, topic: str | None = None) -> str:
        """Ask the broker not to deliver a message that waits for its ``delay_s`` or ``deliver_at``.

        The broker's yes is as safe as a send; whether the message still waited is not known then,
        so recall well before it is due.

        Args:
            receipt: of its send, or the receipt's ``recall_handle``, which may have been kept
                elsewhere and works from any producer.
            topic: of the message; by default what the handle says.

        Returns:
            The message's id.

        Raises:
            LocalProtocolError: it cannot be recalled: it had no delivery time, or was stored by
                a broker that recalls nothing (before RocketMQ 5.3.1).
            NoPermission: the broker's ``recallMessageEnable`` is off.
            BrokerError: the broker refuses: the time is too near or past.
            RouteNotFound: no name server knows the topic, or the broker that has the message.
            ConnectionFailed, RequestTimeout: whether it is recalled is not known; do it again.

        Source: RocketMQ DefaultMQProducer.recallMessage.
        """
        if not isinstance(receipt, str | SendReceipt):
            raise LocalProtocolError(
                f"receipt={receipt!r:.80}: expected a SendReceipt, or its recall_handle"
            )
        text = receipt if isinstance(receipt, str) else receipt.recall_handle
        if text is None:
            raise LocalProtocolError(
                f"{receipt!s:.200} has no recall_handle: only a message with delay_s or deliver_at "
                "can be recalled, from a broker of RocketMQ 5.3.1 or later, or pymq"
            )
        try:
            handle = RecallHandle.decode(text)
        except RemoteProtocolError as error:
            raise LocalProtocolError(
                f"{text!r:.200} is no recall handle: take recall_handle of a SendReceipt"
            ) from error
        pool, topic = self._parts.pool, topic or self._parts.pool.network.unwrap(handle.topic)
        route = await pool.routes.route(topic)
        address = route.address(handle.broker_name)
        channel = await pool.broker_channel(topic, handle.broker_name, address)
        operation = recall_message(topic, text, group=self._config.producer_group)
        try:
            return await pool.ask(channel, operation)
        except NoPermission as error:
            raise error.retold(
                f"{error}; broker {handle.broker_name!r} recalls messages with "
                "recallMessageEnable=true"
            ) from error
