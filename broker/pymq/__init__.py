"""RocketMQ for Python and Spark: broker, name server, client, embedded broker for tests.

What applications use, loaded on first access::

    from pymq import Consumer, Message, Producer          # asyncio
    from pymq import PullConsumer, Reader, SimpleConsumer # at one's own pace; columns; POP
    from pymq import blocking                             # the same without asyncio
    from pymq import selectors                            # which queue a message goes to
    from pymq import allocation                           # which queues a member reads
    from pymq import Admin, BlockingClient                # topics, groups; plain requests
    from pymq.testing import Cluster                      # name server and broker in-process

Every exception is here, too, and every class that appears in their signatures. Importing this
package needs the standard library only.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pymq import allocation, blocking, selectors
    from pymq.client.administration.admin import Admin
    from pymq.client.administration.resets import OffsetChange
    from pymq.client.cluster.config import ClientConfig
    from pymq.client.cluster.network import Network
    from pymq.client.cluster.routes import Route
    from pymq.client.consuming.consume_hooks import ConsumeHook, ConsumeOutcome, ConsumeResult
    from pymq.client.consuming.consumer import Consumer
    from pymq.client.consuming.message_loop import MessageLoop
    from pymq.client.group.group_progress import QueueLag
    from pymq.client.group.inbox import FlowLimits
    from pymq.client.group.rebalance_listener import RebalanceListener
    from pymq.client.operations import (
        PullResult,
        PullStatus,
        SendResult,
        SendStatus,
        TransactionStatus,
    )
    from pymq.client.pulling.column_batch import ColumnBatch
    from pymq.client.pulling.pull_consumer import PullConsumer
    from pymq.client.pulling.reader import Reader
    from pymq.client.pulling.simple_consumer import SimpleConsumer
    from pymq.client.ranges import PullChunk
    from pymq.client.sending.batcher import Batcher
    from pymq.client.sending.column_receipts import ColumnReceipts
    from pymq.client.sending.hooks import SendHook, SendOutcome
    from pymq.client.sending.producer import Producer
    from pymq.client.sending.receipts import SendReceipt
    from pymq.client.sending.requests import Reply
    from pymq.client.sending.transaction import Transaction
    from pymq.client.sockets.blocking_client import BlockingClient
    from pymq.clock import Clock
    from pymq.errors import (
        AlreadySettled,
        BrokerError,
        BrokersFailed,
        BrokerSystemError,
        ClientClosed,
        ClientMisplaced,
        CommitFailed,
        ConfigurationError,
        ConnectionFailed,
        ConsumerNotOnline,
        CorruptRecord,
        DiskFull,
        DurabilityUnknown,
        FilterSyntaxError,
        FlushFailed,
        GroupNotExist,
        InvalidParameter,
        LocalProtocolError,
        MessageIllegal,
        MessageNotFound,
        NoPermission,
        NotInHand,
        NotReplicated,
        OffsetOutOfRange,
        ProtocolError,
        PullOffsetMoved,
        PymqError,
        QueryNotFound,
        RemoteProtocolError,
        RequestNotSupported,
        RequestTimeout,
        RouteNotFound,
        RowsNotSent,
        ServiceNotAvailable,
        StoreBusy,
        StoreClosed,
        StoreError,
        StoreLocked,
        StoreMismatch,
        SubscriptionNotExist,
        SubscriptionNotLatest,
        SubscriptionParseFailed,
        SystemBusy,
        TooManyPending,
        TopicNotExist,
    )
    from pymq.protocol.bodies import (
        BrokerData,
        ClientConnection,
        ClusterInfo,
        ConsumeFromWhere,
        ConsumerConnections,
        GroupConfig,
        MessageModel,
        MessageQueue,
        Subscription,
        TopicConfig,
        TopicOffset,
    )
    from pymq.protocol.client_bodies import ConsumerRunningInfo, ProcessQueueInfo
    from pymq.protocol.compression import Compression
    from pymq.protocol.message import Message, ReceivedMessage
else:
    # Hidden from checkers, which would take any name for granted, misspelt ones as well.
    # Every other name of __all__ is an exception.
    _HOMES = {
        "pymq.client.administration.admin": "Admin",
        "pymq.client.administration.resets": "OffsetChange",
        "pymq.client.sending.batcher": "Batcher",
        "pymq.client.sockets.blocking_client": "BlockingClient",
        "pymq.client.pulling.column_batch": "ColumnBatch",
        "pymq.client.sending.column_receipts": "ColumnReceipts",
        "pymq.client.cluster.config": "ClientConfig",
        "pymq.client.consuming.consume_hooks": "ConsumeHook ConsumeOutcome ConsumeResult",
        "pymq.client.consuming.consumer": "Consumer",
        "pymq.client.group.group_progress": "QueueLag",
        "pymq.client.sending.hooks": "SendHook SendOutcome",
        "pymq.client.group.inbox": "FlowLimits",
        "pymq.client.consuming.message_loop": "MessageLoop",
        "pymq.client.cluster.network": "Network",
        "pymq.client.operations": "PullResult PullStatus SendResult SendStatus TransactionStatus",
        "pymq.client.sending.producer": "Producer",
        "pymq.client.pulling.pull_consumer": "PullConsumer",
        "pymq.client.ranges": "PullChunk",
        "pymq.client.pulling.reader": "Reader",
        "pymq.client.group.rebalance_listener": "RebalanceListener",
        "pymq.client.sending.receipts": "SendReceipt",
        "pymq.client.sending.requests": "Reply",
        "pymq.client.cluster.routes": "Route",
        "pymq.client.pulling.simple_consumer": "SimpleConsumer",
        "pymq.client.sending.transaction": "Transaction",
        "pymq.clock": "Clock",
        "pymq.protocol.bodies": (
            "BrokerData ClientConnection ClusterInfo ConsumeFromWhere ConsumerConnections "
            "GroupConfig MessageModel MessageQueue Subscription TopicConfig TopicOffset"
        ),
        "pymq.protocol.client_bodies": "ConsumerRunningInfo ProcessQueueInfo",
        "pymq.protocol.compression": "Compression",
        "pymq.protocol.message": "Message ReceivedMessage",
    }
    _HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        from pymq.extras import imported

        if name in ("allocation", "blocking", "selectors"):
            return imported(f"pymq.{name}")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(imported(_HOME_OF.get(name, "pymq.errors")), name)
        globals()[name] = value  # once: it may be used for every message
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "Admin",
    "AlreadySettled",
    "Batcher",
    "BlockingClient",
    "BrokerData",
    "BrokerError",
    "BrokerSystemError",
    "BrokersFailed",
    "ClientClosed",
    "ClientConfig",
    "ClientConnection",
    "ClientMisplaced",
    "Clock",
    "ClusterInfo",
    "ColumnBatch",
    "ColumnReceipts",
    "CommitFailed",
    "Compression",
    "ConfigurationError",
    "ConnectionFailed",
    "ConsumeFromWhere",
    "ConsumeHook",
    "ConsumeOutcome",
    "ConsumeResult",
    "Consumer",
    "ConsumerConnections",
    "ConsumerNotOnline",
    "ConsumerRunningInfo",
    "CorruptRecord",
    "DiskFull",
    "DurabilityUnknown",
    "FilterSyntaxError",
    "FlowLimits",
    "FlushFailed",
    "GroupConfig",
    "GroupNotExist",
    "InvalidParameter",
    "LocalProtocolError",
    "Message",
    "MessageIllegal",
    "MessageLoop",
    "MessageModel",
    "MessageNotFound",
    "MessageQueue",
    "Network",
    "NoPermission",
    "NotInHand",
    "NotReplicated",
    "OffsetChange",
    "OffsetOutOfRange",
    "ProcessQueueInfo",
    "Producer",
    "ProtocolError",
    "PullChunk",
    "PullConsumer",
    "PullOffsetMoved",
    "PullResult",
    "PullStatus",
    "PymqError",
    "QueryNotFound",
    "QueueLag",
    "Reader",
    "RebalanceListener",
    "ReceivedMessage",
    "RemoteProtocolError",
    "Reply",
    "RequestNotSupported",
    "RequestTimeout",
    "Route",
    "RouteNotFound",
    "RowsNotSent",
    "SendHook",
    "SendOutcome",
    "SendReceipt",
    "SendResult",
    "SendStatus",
    "ServiceNotAvailable",
    "SimpleConsumer",
    "StoreBusy",
    "StoreClosed",
    "StoreError",
    "StoreLocked",
    "StoreMismatch",
    "Subscription",
    "SubscriptionNotExist",
    "SubscriptionNotLatest",
    "SubscriptionParseFailed",
    "SystemBusy",
    "TooManyPending",
    "TopicConfig",
    "TopicNotExist",
    "TopicOffset",
    "Transaction",
    "TransactionStatus",
    "allocation",
    "blocking",
    "selectors",
]
