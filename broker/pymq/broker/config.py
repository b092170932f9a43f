"""How one broker behaves; fixed for its lifetime."""

import ipaddress
from dataclasses import dataclass

from pymq.errors import ConfigurationError
from pymq.protocol.codes import Permission
from pymq.protocol.framing import FRAME_BYTES_MAX
from pymq.settings import setting

#: Plain numbers: combining flags of an enumeration costs a microsecond, and every send asks.
_READ, _WRITE = int(Permission.READ), int(Permission.WRITE)


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
    permission: int = setting("brokerPermission", default=6)
    auto_create_topic: bool = setting("autoCreateTopicEnable", default=True)
    auto_create_group: bool = setting("autoCreateSubscriptionGroup", default=True)
    default_topic_queue_count: int = setting("defaultTopicQueueNums", default=8)
    cluster_topic: bool = setting("clusterTopicEnable", default=True)
    broker_topic: bool = setting("brokerTopicEnable", default=True)
    long_polling: bool = setting("longPollingEnable", default=True)
    short_polling_ms: int = setting("shortPollingTimeMills", default=1000)
    held_pull_count_max: int = 100_000
    register_interval_ms: int = setting("registerNameServerPeriod", default=30_000)
    register_timeout_ms: int = setting("registerBrokerTimeoutMills", default=24_000)
    offset_flush_interval_ms: int = setting("flushConsumerOffsetInterval", default=5_000)
    client_expiry_ms: int = 120_000  # RocketMQ CHANNEL_EXPIRED_TIMEOUT
    client_scan_interval_ms: int = 10_000
    sync_flush_timeout_ms: int = setting("syncFlushTimeout", default=5_000)
    #: Limits of a pull that does not ask for more (RocketMQ maxTransfer...OnMessageInMemory).
    pull_bytes_max: int = setting("maxTransferBytesOnMessageInMemory", default=262_144)
    pull_count_max: int = setting("maxTransferCountOnMessageInMemory", default=32)
    #: How much of the end of the log is assumed to be in memory; None: 40 % of the machine's
    #: memory (RocketMQ accessMessageInMemoryMaxRatio). Older messages are read in a thread.
    memory_bytes: int | None = None
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
