"""How one broker behaves: fixed for its lifetime, but for the settings marked as live.

Administrators may change those while it runs. They are asked for whenever they count, and copied
nowhere; see ``settings.take_over``.
"""

import ipaddress
from dataclasses import dataclass, fields

from pymq.errors import ConfigurationError
from pymq.protocol import names
from pymq.protocol.codes import Permission
from pymq.protocol.framing import FRAME_BYTES_MAX
from pymq.settings import setting

#: Plain numbers: combining flags of an enumeration costs a microsecond, and every send asks.
_READ, _WRITE = int(Permission.READ), int(Permission.WRITE)
#: A broker that waits longer would hardly ever sleep.
BUSY_POLL_US_MAX = 1_000
#: Numbers that are 1 or more: with less a duty would never pause, nobody could connect, nothing
#: would come in time.
_POSITIVE = (
    "revive_queue_count",
    "connection_count_max",
    "offset_flush_interval_ms",
    "register_interval_ms",
    "register_timeout_ms",
    "transaction_check_interval_ms",
    "delay_flush_interval_ms",
    "timer_flush_interval_ms",
    "client_expiry_ms",
    "sync_flush_timeout_ms",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """RocketMQ BrokerConfig, as far as it applies, with the keys of its files."""

    name: str = setting("brokerName", default="broker-a")
    cluster: str = setting("brokerClusterName", default="DefaultCluster")
    broker_id: int = setting("brokerId", default=0)
    bind_address: str = setting("bindAddress", default="127.0.0.1")
    listen_port: int = setting("listenPort", default=10911)  # 0: any free one
    #: What clients are told to connect to; None: ``bind_address`` if that is a single address.
    advertised_address: str | None = setting("brokerIP1", default=None)
    name_servers: tuple[str, ...] = setting("namesrvAddr", default=())
    permission: int = setting("brokerPermission", default=6, live=True)
    auto_create_topic: bool = setting("autoCreateTopicEnable", default=True, live=True)
    auto_create_group: bool = setting("autoCreateSubscriptionGroup", default=True, live=True)
    default_topic_queue_count: int = setting("defaultTopicQueueNums", default=8)
    cluster_topic: bool = setting("clusterTopicEnable", default=True)
    broker_topic: bool = setting("brokerTopicEnable", default=True)
    reject_transactions: bool = setting("rejectTransactionMessage", default=False, live=True)
    #: A transaction that is not ended this long after its message was born is checked.
    transaction_timeout_ms: int = setting("transactionTimeOut", default=6_000, live=True)
    transaction_check_interval_ms: int = setting(
        "transactionCheckInterval", default=30_000, live=True
    )
    transaction_check_max: int = setting("transactionCheckMax", default=15, live=True)
    #: Is the topic for traces of messages there from the beginning? Otherwise as any topic.
    trace_topic: bool = setting("traceTopicEnable", default=False)
    trace_topic_name: str = setting("msgTraceTopicName", default=names.TRACE_TOPIC)
    long_polling: bool = setting("longPollingEnable", default=True, live=True)
    short_polling_ms: int = setting("shortPollingTimeMills", default=1000, live=True)
    held_pull_count_max: int = setting("pymqHeldPullCountMax", default=100_000)
    #: Most connections of clients; fewer if the process may not open as many files.
    connection_count_max: int = setting("pymqConnectionCountMax", default=20_000)
    #: How long the event loop stays awake for the next request after it has answered one; 0: not
    #: at all. See ``net.busy_poll``.
    busy_poll_us: int = setting("pymqBusyPollMicros", default=200)
    #: How many requests of each class may wait for a disk or a peer; see
    #: ``pressure.request_classes``.
    waiting_send_count_max: int = setting("sendThreadPoolQueueCapacity", default=10_000)
    waiting_reply_count_max: int = setting("replyThreadPoolQueueCapacity", default=10_000)
    waiting_pull_count_max: int = setting("pullThreadPoolQueueCapacity", default=100_000)
    waiting_lite_pull_count_max: int = setting("litePullThreadPoolQueueCapacity", default=100_000)
    waiting_ack_count_max: int = setting("ackThreadPoolQueueCapacity", default=100_000)
    waiting_query_count_max: int = setting("queryThreadPoolQueueCapacity", default=20_000)
    waiting_heartbeat_count_max: int = setting("heartbeatThreadPoolQueueCapacity", default=50_000)
    waiting_client_count_max: int = setting(
        "clientManagerThreadPoolQueueCapacity", default=1_000_000
    )
    waiting_consumer_count_max: int = setting(
        "consumerManagerThreadPoolQueueCapacity", default=1_000_000
    )
    waiting_assignment_count_max: int = setting(
        "loadBalanceThreadPoolQueueCapacity", default=100_000
    )
    waiting_transaction_count_max: int = setting("endTransactionPoolQueueCapacity", default=100_000)
    waiting_admin_count_max: int = setting("adminBrokerThreadPoolQueueCapacity", default=10_000)
    #: Are requests that waited too long refused, instead of being handled late?
    fast_failure: bool = setting("brokerFastFailureEnable", default=True, live=True)
    #: How long requests of each class may wait to be handled.
    send_wait_ms: int = setting("waitTimeMillsInSendQueue", default=200, live=True)
    pull_wait_ms: int = setting("waitTimeMillsInPullQueue", default=5_000, live=True)
    lite_pull_wait_ms: int = setting("waitTimeMillsInLitePullQueue", default=5_000, live=True)
    ack_wait_ms: int = setting("waitTimeMillsInAckQueue", default=3_000, live=True)
    heartbeat_wait_ms: int = setting("waitTimeMillsInHeartbeatQueue", default=31_000, live=True)
    transaction_wait_ms: int = setting("waitTimeMillsInTransactionQueue", default=3_000, live=True)
    admin_wait_ms: int = setting("waitTimeMillsInAdminBrokerQueue", default=5_000, live=True)
    #: When the disk has not taken a write for this long, sends are refused.
    page_cache_busy_ms: int = setting("osPageCacheBusyTimeOutMills", default=1_000, live=True)
    #: What sends that wait for a flush may take of the memory, roughly.
    in_flight_bytes_max: int = setting("pymqInFlightBytesMax", default=256 << 20, live=True)
    register_interval_ms: int = setting("registerNameServerPeriod", default=30_000)
    register_timeout_ms: int = setting("registerBrokerTimeoutMills", default=24_000)
    offset_flush_interval_ms: int = setting("flushConsumerOffsetInterval", default=5_000)
    #: Are consumers that lag far behind sent to a slave?
    slave_read: bool = setting("slaveReadEnable", default=False)
    #: May lite pull consumers of 5.x read from this broker?
    lite_pull: bool = setting("litePullMessageEnable", default=True)
    #: Are replies to requests of producers also stored, in the reply topic?
    store_replies: bool = setting("storeReplyMessageEnable", default=True, live=True)
    #: Are groups set back by the broker itself, in answers to their pulls? False: by the consumers.
    server_side_reset: bool = setting("useServerSideResetOffset", default=True, live=True)
    #: Are the members of consumer groups told when they have to rebalance?
    notify_consumer_ids_changed: bool = setting("notifyConsumerIdsChangedEnable", default=True)
    client_expiry_ms: int = setting("channelExpiredTimeout", default=120_000)
    delay_flush_interval_ms: int = setting("flushDelayOffsetInterval", default=10_000)
    #: How long a timer message may wait.
    timer_max_delay_s: int = setting("timerMaxDelaySec", default=259_200)
    #: Above this many timer messages in one slot, some more are refused; above twice as many, all.
    timer_congestion_max: int = setting("timerCongestNumEachSlot", default=(1 << 31) - 1)
    #: May producers cancel timer messages by their recall handles; also while this broker takes no
    #: messages?
    recall_messages: bool = setting("recallMessageEnable", default=False)
    recall_when_not_writable: bool = setting("allowRecallWhenBrokerNotWriteable", default=True)
    timer_flush_interval_ms: int = setting("timerFlushIntervalMs", default=1000)
    #: Do timer messages stay where they are: those that arrive, those that are due?
    timer_stop_enqueue: bool = setting("timerStopEnqueue", default=False)
    timer_stop_dequeue: bool = setting("timerStopDequeue", default=False)
    client_scan_interval_ms: int = 10_000
    sync_flush_timeout_ms: int = setting("syncFlushTimeout", default=5_000)
    #: Limits of a pull that does not ask for more (RocketMQ maxTransfer...OnMessageInMemory).
    pull_bytes_max: int = setting("maxTransferBytesOnMessageInMemory", default=262_144, live=True)
    pull_count_max: int = setting("maxTransferCountOnMessageInMemory", default=32, live=True)
    #: How much of the end of the log is assumed to be in memory; None: 40 % of the machine's
    #: memory (RocketMQ accessMessageInMemoryMaxRatio). Older messages are read in a thread.
    memory_bytes: int | None = None
    #: Limits of a pull with the pymq extension.
    extended_pull_bytes_max: int = 8 << 20
    extended_pull_count_max: int = 65_536
    #: May consumers select messages by SQL92 expressions?
    property_filter: bool = setting("enablePropertyFilter", default=False, live=True)
    #: Are messages of a retry topic selected by the filter for the topic they came from?
    filter_retries: bool = setting("filterSupportRetry", default=False, live=True)
    #: The filter of a group that has left is remembered this long.
    filter_expiry_ms: int = setting("filterDataCleanTimeSpan", default=86_400_000)
    #: Do queues remember which filters a message passes? Only with the extensions of queues
    #: (enableConsumeQueueExt).
    bit_maps: bool = setting("enableCalcFilterBitMap", default=False)
    #: Sizes of the bit maps of filters: see ``filter.bloom``.
    bloom_error_percent: int = setting("maxErrorRateOfBloomFilter", default=20)
    bloom_name_count: int = setting("expectConsumerNumUseFilter", default=32)
    #: Popping. How often retry topics come first, in percent; the form of their names.
    pop_retry_percent: int = setting("popFromRetryProbability", default=20)
    pop_retry_v2: bool = setting("enableRetryTopicV2", default=False)
    pop_retry_v1_too: bool = setting("retrieveMessageFromPopRetryTopicV1", default=True)
    pop_actual_topic: bool = setting("popResponseReturnActualRetryTopic", default=False)
    pop_start_in_memory: bool = setting("initPopOffsetByCheckMsgInMem", default=True)
    #: Are the retry topics of groups that popped a topic deleted together with it?
    delete_retry_topics: bool = setting("clearRetryTopicWhenDeleteTopic", default=True, live=True)
    held_pop_count_max: int = setting("maxPopPollingSize", default=100_000)
    held_pop_room_count_max: int = setting("popPollingSize", default=1024)
    revive_queue_count: int = setting("reviveQueueNum", default=8)
    #: Rebalancing by the broker, and what groups do whose mode was not set: PULL or POP.
    server_load_balancer: bool = setting("serverLoadBalancerEnable", default=True)
    request_mode: str = setting("defaultMessageRequestMode", default="PULL")
    pop_share_count: int = setting("defaultPopShareQueueNum", default=-1)
    #: Pops whose messages are not all acknowledged; about 1 KB of memory each.
    pop_checkpoint_count_max: int = 1_000_000
    #: May UPDATE_BROKER_CONFIG change settings? Senders are not authenticated.
    allow_config_update: bool = setting("pymqAllowConfigUpdate", default=False)
    #: Keys that may not even then.
    config_black_list: tuple[str, ...] = setting(
        "configBlackList", default=("configBlackList", "brokerConfigPath")
    )
    frame_bytes_max: int = FRAME_BYTES_MAX
    #: Serve sends on ``listen_port - 2`` too, as old clients with the VIP channel expect.
    vip_port: bool = True

    def __post_init__(self) -> None:
        for name in ("name", "cluster"):
            if not getattr(self, name).strip():
                raise ConfigurationError(f"{name} is blank; give the broker a {name}")
        if self.broker_id < 0:
            raise ConfigurationError(f"broker_id={self.broker_id}: expected 0 (master) or above")
        if not 0 <= self.listen_port <= 65535:
            raise ConfigurationError(f"listen_port={self.listen_port}: expected 0..65535")
        if not 0 <= self.permission <= 7:
            raise ConfigurationError(
                f"permission={self.permission}: expected a sum of 4 (read), 2 (write)"
            )
        if self.default_topic_queue_count < 1:
            raise ConfigurationError(
                f"default_topic_queue_count={self.default_topic_queue_count}: expected 1 or more"
            )
        for field in fields(self):
            name, key = field.name, field.metadata.get("key")
            if name in _POSITIVE and getattr(self, name) < 1:
                raise ConfigurationError(
                    f"{name}={getattr(self, name)} ({key}): expected 1 or more"
                )
        if not 0 <= self.busy_poll_us <= BUSY_POLL_US_MAX:
            raise ConfigurationError(
                f"busy_poll_us={self.busy_poll_us} (pymqBusyPollMicros): expected 0.."
                f"{BUSY_POLL_US_MAX}"
            )
        if self.extended_pull_bytes_max + (1 << 20) > self.frame_bytes_max:
            raise ConfigurationError(
                f"extended_pull_bytes_max={self.extended_pull_bytes_max}: expected 1 MiB less "
                f"than frame_bytes_max={self.frame_bytes_max}"
            )
        if not 1 <= self.bloom_error_percent <= 99 or self.bloom_name_count < 1:
            raise ConfigurationError(
                f"bloom_error_percent={self.bloom_error_percent} (maxErrorRateOfBloomFilter), "
                f"bloom_name_count={self.bloom_name_count} (expectConsumerNumUseFilter): expected "
                "1..99, and 1 or more"
            )
        self._check_address()

    def _check_address(self) -> None:
        address = self.advertised_address
        if address is None:
            return
        try:
            ip = ipaddress.ip_address(address)
        except ValueError as error:
            raise ConfigurationError(
                f"advertised_address={address!r} (brokerIP1): expected an IP address, because "
                "message ids contain it"
            ) from error
        if ip.is_unspecified:
            raise ConfigurationError(
                f"advertised_address={address} (brokerIP1): clients cannot connect to it; "
                "give the address at which they reach this machine"
            )

    @property
    def is_readable(self) -> bool:
        """May clients read from this broker?"""
        return self.permission & _READ != 0

    @property
    def is_writable(self) -> bool:
        """May clients write to this broker?"""
        return self.permission & _WRITE != 0
