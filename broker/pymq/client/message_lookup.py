"""Single messages, found on the brokers: by either of their ids, and by key."""

from pymq.client import operations
from pymq.client.blocking_pool import BlockingPool
from pymq.errors import ConfigurationError, LocalProtocolError, MessageNotFound, RouteNotFound
from pymq.protocol.addresses import join_address
from pymq.protocol.headers.codec import INT64_MAX
from pymq.protocol.message import ReceivedMessage
from pymq.protocol.record import parse_offset_message_id, unpack_host


def view_message(pool: BlockingPool, message_id: str, topic: str | None) -> ReceivedMessage:
    """Return a message by its id; see ``BlockingAdmin.view_message``."""
    try:
        packed, physical_offset = parse_offset_message_id(message_id)
        address = join_address(*unpack_host(packed))
    except LocalProtocolError:
        if topic is None:
            raise
        return _view_by_key(pool, topic, message_id)
    for name, data in pool.ask_name_servers(operations.cluster_info()).brokers.items():
        if address in data.addresses.values():
            record = pool.ask(address, operations.view_message(physical_offset, topic))
            return ReceivedMessage.from_record(record, name)
    if topic is None:
        raise RouteNotFound(
            f"message id {message_id} belongs to a broker at {address}, and none is "
            "registered there; if it is the id that the producer gave, name the topic, too"
        )
    return _view_by_key(pool, topic, message_id)


def _view_by_key(pool: BlockingPool, topic: str, message_id: str) -> ReceivedMessage:
    # The producer's id is a key of its message.
    for message in query_messages(pool, topic, message_id):
        if message.message_id == message_id:
            return message
    raise MessageNotFound(f"topic {topic!r} has no message with id {message_id!r}")


def query_messages(
    pool: BlockingPool,
    topic: str,
    key: str,
    *,
    count_max: int = operations.QUERY_COUNT_MAX,
    begin_ms: int = 0,
    end_ms: int = INT64_MAX,
) -> list[ReceivedMessage]:
    """Return the newest messages with a key; see ``BlockingAdmin.query_messages``."""
    if not 1 <= count_max <= operations.QUERY_COUNT_MAX:
        raise ConfigurationError(
            f"{count_max} messages of key {key!r}, expected 1..{operations.QUERY_COUNT_MAX}"
        )
    found = []
    for name, address in pool.route(topic).masters().items():
        query = operations.query_messages(
            topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms
        )
        for record in pool.ask(address, query):
            message = ReceivedMessage.from_record(record, name)
            if message.topic == topic and (key in message.keys or message.message_id == key):
                found.append(message)
    found.sort(key=lambda message: message.store_timestamp_ms)
    return found[-count_max:]
