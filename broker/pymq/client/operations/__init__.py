"""Sans-IO: one operation for each request that a client makes.

An operation is the request, and how its response becomes a value or an error::

    operation = operations.min_offset(queue)
    response = ...                                  # some channel carries operation.request
    offset = operation.result(response, peer="10.0.0.1:10911")

Channels fill in ``request.opaque``, so an operation can be in flight once at a time. Another try
to send a message makes another operation of the same ``PreparedMessage``: its id stays.

What only some clients need is loaded when it is first used: the headers and bodies of a hundred
requests take longer to import than all the rest.

Source: RocketMQ MQClientAPIImpl.
"""

from typing import TYPE_CHECKING

from pymq.client.operations.members import (
    consumer_ids,
    heartbeat,
    lock_queues,
    unlock_queues,
    unregister,
)
from pymq.client.operations.name_server import (
    cluster_info,
    delete_topic_routes,
    find_value,
    forgets_in_cluster,
    put_value,
    route,
    topic_list,
)
from pymq.client.operations.offsets import (
    earliest_store_time,
    max_offset,
    min_offset,
    offset_by_time,
    query_offset,
    update_offset,
)
from pymq.client.operations.operation import Operation
from pymq.client.operations.pulls import Pull, PullResult, PullStatus
from pymq.client.operations.retries import bury, send_back
from pymq.client.operations.sends import (
    BODY_BYTES_MAX,
    DEFAULT_QUEUE_COUNT,
    PreparedMessage,
    Send,
    SendResult,
    SendStatus,
    check_send_topic,
    may_send_elsewhere,
    read_send,
)
from pymq.client.operations.transactions import TransactionStatus, end_transaction

if TYPE_CHECKING:
    from pymq.client.operations.administration import (
        broker_state,
        clean_expired_queues,
        consume_stats,
        consumer_connections,
        delete_expired_log,
        delete_group,
        delete_topic,
        group_config,
        group_table,
        groups_of_topic,
        groups_with_offsets,
        running_info,
        topic_config,
        topic_stats,
        topic_table,
        topics_of_group,
        update_group,
        update_topic,
    )
    from pymq.client.operations.pops import Pop, acknowledge, change_invisible, wait_popped
    from pymq.client.operations.queries import QUERY_COUNT_MAX, query_messages, view_message
    from pymq.client.operations.ranges import fitting_ranges
    from pymq.client.operations.recalls import recall_message
    from pymq.client.operations.replication import (
        broker_config,
        controller_metadata,
        designate_master,
        epoch_cache,
        replica_table,
        replication_status,
    )
    from pymq.client.operations.resets import reset_members, reset_queue
    from pymq.client.operations.sinks import (
        SinkState,
        forget_sink,
        list_sinks,
        publish_batch,
        show_sinks,
        sink_state,
    )
else:
    import importlib

    _HOMES = {
        "administration": (
            "broker_state clean_expired_queues consume_stats consumer_connections "
            "delete_expired_log delete_group delete_topic group_config group_table "
            "groups_of_topic groups_with_offsets running_info topic_config topic_stats topic_table "
            "topics_of_group update_group update_topic"
        ),
        "pops": "Pop acknowledge change_invisible wait_popped",
        "queries": "QUERY_COUNT_MAX query_messages view_message",
        "ranges": "fitting_ranges",
        "recalls": "recall_message",
        "replication": (
            "broker_config controller_metadata designate_master epoch_cache "
            "replica_table replication_status"
        ),
        "resets": "reset_members reset_queue",
        "sinks": "SinkState forget_sink list_sinks publish_batch show_sinks sink_state",
    }
    _HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = importlib.import_module(f"{__name__}.{_HOME_OF[name]}")
        value = globals()[name] = getattr(home, name)
        return value


__all__ = [
    "BODY_BYTES_MAX",
    "DEFAULT_QUEUE_COUNT",
    "Operation",
    "Pop",
    "PreparedMessage",
    "Pull",
    "PullResult",
    "PullStatus",
    "QUERY_COUNT_MAX",
    "Send",
    "SendResult",
    "SendStatus",
    "SinkState",
    "TransactionStatus",
    "acknowledge",
    "broker_config",
    "broker_state",
    "bury",
    "change_invisible",
    "check_send_topic",
    "clean_expired_queues",
    "cluster_info",
    "consume_stats",
    "consumer_connections",
    "consumer_ids",
    "controller_metadata",
    "delete_expired_log",
    "delete_group",
    "delete_topic",
    "delete_topic_routes",
    "designate_master",
    "earliest_store_time",
    "end_transaction",
    "epoch_cache",
    "find_value",
    "fitting_ranges",
    "forget_sink",
    "forgets_in_cluster",
    "group_config",
    "group_table",
    "groups_of_topic",
    "groups_with_offsets",
    "heartbeat",
    "list_sinks",
    "lock_queues",
    "max_offset",
    "may_send_elsewhere",
    "min_offset",
    "offset_by_time",
    "publish_batch",
    "put_value",
    "query_messages",
    "query_offset",
    "read_send",
    "recall_message",
    "replica_table",
    "replication_status",
    "reset_members",
    "reset_queue",
    "route",
    "running_info",
    "send_back",
    "show_sinks",
    "sink_state",
    "topic_config",
    "topic_list",
    "topic_stats",
    "topic_table",
    "topics_of_group",
    "unlock_queues",
    "unregister",
    "update_group",
    "update_offset",
    "update_topic",
    "view_message",
    "wait_popped",
]
