"""How one name server behaves."""

from dataclasses import dataclass
from pathlib import Path

from pymq.errors import ConfigurationError
from pymq.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesrvConfig:
    """How one name server behaves; the keys are RocketMQ's, except those that begin with ``pymq``.

    Live settings may change while it runs: see ``live_settings``.

    Source: RocketMQ NamesrvConfig, NettyServerConfig.
    """

    host: str = setting("bindAddress", default="127.0.0.1")
    port: int = setting("listenPort", default=9876)  # 0: any free one
    #: A connection on which nothing arrives for this long is closed.
    idle_s: int = setting("serverChannelMaxIdleTimeSeconds", default=120)
    #: Where the effect of PUT_KV_CONFIG is kept across restarts; None: nowhere.
    kv_config_path: Path | None = setting("kvConfigPath", default=None)
    #: Do routes carry the order-topic configuration?
    order_message_enable: bool = setting("orderMessageEnable", default=False, live=True)
    #: Are brokers told which topics are order topics when they register?
    return_order_topic_config: bool = setting(
        "returnOrderTopicConfigToBroker", default=True, live=True
    )
    #: May clients list all topics? May they list the topics of a cluster, and system topics?
    enable_all_topic_list: bool = setting("enableAllTopicList", default=True, live=True)
    enable_topic_list: bool = setting("enableTopicList", default=True, live=True)
    #: Do clients see a slave that acts for its master as the master? They may read there.
    support_acting_master: bool = setting("supportActingMaster", default=False, live=True)
    #: Are brokers told at once when the lowest id of their group changes? They ask every second.
    notify_lowest_id: bool = setting("notifyMinBrokerIdChanged", default=False, live=True)
    scan_interval_ms: int = setting("scanNotActiveBrokerInterval", default=5_000)
    #: A broker that is silent for this long is gone, unless it registered with a time of its own.
    broker_expiry_s: float = setting("pymqBrokerExpirySeconds", default=120.0)
    #: May UPDATE_NAMESRV_CONFIG change live settings? Senders are not authenticated.
    allow_config_update: bool = setting("pymqAllowConfigUpdate", default=False)
    #: Keys that may not even then.
    config_black_list: tuple[str, ...] = setting(
        "configBlackList", default=("configBlackList", "configStorePath", "kvConfigPath")
    )

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigurationError(f"listenPort={self.port}: expected 0..65535")
        for key, value in (
            ("serverChannelMaxIdleTimeSeconds", self.idle_s),
            ("scanNotActiveBrokerInterval", self.scan_interval_ms),
            ("pymqBrokerExpirySeconds", self.broker_expiry_s),
        ):
            if value <= 0:
                raise ConfigurationError(f"{key}={value}: expected more than 0")
