"""Sends of pre-encoded records: an extension that only pymq brokers know.

Their sender encodes records as the log stores them, so the broker does not have to. A client first
asks whether the broker takes them, once per connection, because another broker may run at the
address later; after a refusal it sends batches.
"""

import base64
from typing import NamedTuple

from pymq.client.operations import Operation, Send
from pymq.protocol.batch_body import encode_batch
from pymq.protocol.codes import RECORD_SIZES_FIELD, SEND_RECORDS, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.record import decode_records
from pymq.protocol.records_body import RecordsBody


def as_batch(records: RecordsBody) -> bytes:
    """Return records as the body of a batch, for a broker that does not take them."""
    found = decode_records(records.body)
    return encode_batch((record.flag, record.body, record.properties) for record in found)


class BrokerKind(NamedTuple):
    """What a broker said of itself.

    Attributes:
        takes_records: does it take pre-encoded records?
        version: of RocketMQ, that it is or acts as (``MQVersion``).
    """

    takes_records: bool
    version: int


class RecordsOffer(Operation[BrokerKind]):
    """Does a broker take pre-encoded records on this connection?"""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(Command(SEND_RECORDS, {}))

    @property
    def description(self) -> str:
        return "whether it takes pre-encoded records"

    def result(self, response: Command, *, peer: str) -> BrokerKind:
        if response.code in (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
            return BrokerKind(response.code == ResponseCode.SUCCESS, response.version)
        raise self.refusal(response, peer)


def send_records(send: Send, records: RecordsBody) -> Send:
    """Return one try to send records, made of what sends them as a batch."""
    request = send.request
    request.code = SEND_RECORDS
    assert request.fields is not None
    request.fields[RECORD_SIZES_FIELD] = base64.b64encode(records.sizes).decode()
    return send
