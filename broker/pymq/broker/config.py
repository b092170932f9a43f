"""How one broker behaves; fixed for its lifetime."""

import ipaddress
from dataclasses import dataclass, field

from pymq.errors import ConfigurationError
from pymq.protocol.codes import Permission
from pymq.protocol.framing import FRAME_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """RocketMQ BrokerConfig, as far as it applies; keys of its files are in the metadata."""

    name: str = field(default="broker-a", metadata={"key": "brokerName"})
    cluster: str = field(default="DefaultCluster", metadata={"key": "brokerClusterName"})
    broker_id: int = field(default=0, metadata={"key": "brokerId"})
    bind_address: str = field(default="127.0.0.1", metadata={"key": "bindAddress"})
    listen_port: int = field(default=10911, metadata={"key": "listenPort"})  # 0: any free one
    #: What clients are told to connect to; ``bind_address`` where that is one address.
    advertised_address: str | None = field(default=None, metadata={"key": "brokerIP1"})
    name_servers: tuple[str, ...] = field(default=(), metadata={"key": "namesrvAddr"})
    permission: int = field(default=6, metadata={"key": "brokerPermission"})
    auto_create_topic: bool = field(default=True, metadata={"key": "autoCreateTopicEnable"})
    auto_create_group: bool = field(
        default=True, metadata={"key": "autoCreateSubscriptionGroup"}
    )
    default_topic_queue_count: int = field(default=8, metadata={"key": "defaultTopicQueueNums"})
    cluster_topic: bool = field(default=True, metadata={"key": "clusterTopicEnable"})
    broker_topic: bool = field(default=True, metadata={"key": "brokerTopicEnable"})
    long_polling: bool = field(default=True, metadata={"key": "longPollingEnable"})
    short_polling_ms: int = field(default=1000, metadata={"key": "shortPollingTimeMills"})
    held_pull_count_max: int = 100_000
    register_interval_ms: int = field(
        default=30_000, metadata={"key": "registerNameServerPeriod"}
    )
    register_timeout_ms: int = field(
        default=24_000, metadata={"key": "registerBrokerTimeoutMills"}
    )
    offset_flush_interval_ms: int = field(
        default=5_000, metadata={"key": "flushConsumerOffsetInterval"}
    )
    client_expiry_ms: int = 120_000  # RocketMQ CHANNEL_EXPIRED_TIMEOUT
    client_scan_interval_ms: int = 10_000
    sync_flush_timeout_ms: int = field(default=5_000, metadata={"key": "syncFlushTimeout"})
    #: Limits of a pull that does not ask for more (RocketMQ maxTransfer...OnMessageInMemory).
    pull_bytes_max: int = field(
        default=262_144, metadata={"key": "maxTransferBytesOnMessageInMemory"}
    )
    pull_count_max: int = field(
        default=32, metadata={"key": "maxTransferCountOnMessageInMemory"}
    )
    #: Limits of a pull with the pymq extension.
    extended_pull_bytes_max: int = 8 << 20
    extended_pull_count_max: int = 65_536
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
        if self.extended_pull_bytes_max + (1 << 20) > self.frame_bytes_max:
            raise ConfigurationError(
                f"extended_pull_bytes_max={self.extended_pull_bytes_max}: expected 1 MiB less "
                f"than frame_bytes_max={self.frame_bytes_max}"
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
                "message ids hold it"
            ) from error
        if ip.is_unspecified:
            raise ConfigurationError(
                f"advertised_address={address} (brokerIP1): clients cannot connect to it; "
                "name the address they reach this machine at"
            )

    @property
    def is_readable(self) -> bool:
        """May clients read from this broker?"""
        return bool(self.permission & Permission.READ)

    @property
    def is_writable(self) -> bool:
        """May clients write to this broker?"""
        return bool(self.permission & Permission.WRITE)
