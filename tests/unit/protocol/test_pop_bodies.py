"""Bodies of popping; the JSON was written by RocketMQ 5.3.3."""

import pytest

from pymq.errors import RemoteProtocolError
from pymq.protocol.pop_bodies import BatchAck, BatchAckRequest

BODY = (
    b'{"acks":[{"b":"IQAAAAAAAABA","c":"g","it":60000,"pt":1795189242816,"q":2,"r":"0","rq":3,'
    b'"so":12,"t":"TopicA"}],"brokerName":"broker-a"}'
)


def test_batches_of_acknowledgements() -> None:
    request = BatchAckRequest.decode(BODY)
    assert request.encode() == BODY
    (ack,) = request.acks
    assert ack.queue_offsets() == [12, 17, 82]
    assert (ack.group, ack.topic, ack.kind, ack.queue_id) == ("g", "TopicA", "0", 2)
    assert (ack.revive_queue_id, ack.pop_time) == (3, 1795189242816)


@pytest.mark.parametrize("bits", ["?", "IQA", "A" * 1_000_000])
def test_bits_that_cannot_be_read(bits: str) -> None:
    with pytest.raises(RemoteProtocolError):
        BatchAck(group="g", topic="T", bits=bits).queue_offsets()
