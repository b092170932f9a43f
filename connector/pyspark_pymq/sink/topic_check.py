"""Whether the broker of an exactly-once sink has a topic that rows of a batch name."""

from pymq.client import operations
from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import ConfigurationError, PymqError, TopicNotExist
from pyspark_pymq.sink.answers import masters_of


def check_topic_at_home(client: BulkClient, topic: str, broker: str) -> None:
    """Refuse a topic that other brokers have, and a sink's has not; what may come is waited for.

    A column names it, so that nobody knew of it when the sink's broker was chosen; or the user
    chose that broker. Waiting would not help: a broker that restarts, or of which name servers
    have not heard yet, is asked itself, and one that is away says nothing.

    Raises:
        ConfigurationError: it is so.
    """
    try:
        names = {queue.broker_name for queue in client.route(topic).write_queues}
        address = None if broker in names else masters_of(client).get(broker)
    except PymqError:  # Sending comes upon it, too, and knows how long to wait.
        return
    if not names or address is None:
        return
    try:
        client.ask(address, operations.topic_config(topic))
    except TopicNotExist as error:
        raise ConfigurationError(
            f"all rows of a batch that is written exactly once go to one broker: this sink is at "
            f"broker {broker}, and topic {topic} at {', '.join(sorted(names))}. Create topic "
            f"{topic} at {broker}; or write with another sink (another txnAppId, or another "
            "checkpoint) and choose its broker with option sinkBroker; or set option "
            "delivery=atLeastOnce"
        ) from error
    except PymqError:
        return
