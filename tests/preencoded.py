"""Records as their sender lays them out, for brokers that take them pre-encoded."""

from typing import Final

from pymq.client.sockets.batch_targets import BatchTarget
from pymq.client.sockets.bulk_client import BulkClient
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.new_batch import NewBatch
from pymq.protocol.new_records import SharedFields
from pymq.protocol.preencoded_records import pack_sizes
from pymq.protocol.record import pack_host
from pymq.protocol.records_body import RecordsBody

#: In place of the addresses that the broker fills in.
NOWHERE: Final = pack_host("0.0.0.0", 0)


def lay_out(topic: str, body: bytes) -> RecordsBody:
    """Return the messages of a batch's body, as ``encode_batch`` made it, as records."""
    shared = SharedFields(
        topic=topic, queue_id=0, born_timestamp=0, born_host=NOWHERE, store_host=NOWHERE
    )
    batch = NewBatch(body, shared)
    data = batch.encode(physical_offset=0, queue_offset=0, store_timestamp=0, store_host=NOWHERE)
    return RecordsBody(memoryview(data), pack_sizes(batch.sizes), len(batch.sizes))


def takes_records(client: BulkClient, queue: MessageQueue) -> bool:
    """Say whether a queue's broker takes such records."""
    pipeline = client.batch_pipeline(in_flight_max=1, retry_s=1.0)
    return pipeline.takes_records(BatchTarget.of(queue))
