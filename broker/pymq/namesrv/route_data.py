"""What the route table hands out, made of what brokers have registered: pure functions."""

from dataclasses import replace

from pymq.protocol.bodies import BrokerData, QueueData, TopicConfig
from pymq.protocol.codes import Permission

MASTER_ID = 0
_WRITE = int(Permission.WRITE)


def acting(broker: BrokerData) -> BrokerData:
    """Return a broker without a master as if its slave with the lowest id were one."""
    addresses = broker.addresses
    if MASTER_ID in addresses or not broker.enable_acting_master:
        return broker
    lowest = min(addresses)
    others = {one: address for one, address in addresses.items() if one != lowest}
    return replace(broker, addresses={MASTER_ID: addresses[lowest], **others})


def queue_data(broker_name: str, topic: TopicConfig, *, read_only: bool) -> QueueData:
    """Return the queues of a topic at a broker, as it has registered them."""
    return QueueData(
        broker_name=broker_name,
        read_queue_count=topic.read_queue_count,
        write_queue_count=topic.write_queue_count,
        perm=topic.perm & ~_WRITE if read_only else topic.perm,
        topic_sys_flag=topic.topic_sys_flag,
    )
