"""How a broker takes part in replication: its role, and the HA port."""

import ipaddress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pymq.errors import ConfigurationError
from pymq.protocol.addresses import split_address
from pymq.protocol.replication import PUSH_BYTES_MAX
from pymq.settings import parse_path, setting

#: How far the HA port is above the one for clients, if it is not configured.
HA_DISTANCE = 1
#: Shorter secrets are refused.
SECRET_BYTES_MIN = 16
#: Heartbeats for which a time-out that is not configured has room: one may be late, and the one
#: after it lost. A configured one needs room for two, or each heartbeat that is late ends a term.
_HEARTBEATS, _HEARTBEATS_MIN = 4, 2


class Role(Enum):
    """What a broker is in its group of brokers of one name (RocketMQ BrokerRole)."""

    ASYNC_MASTER = "takes messages, and does not wait for slaves"
    SYNC_MASTER = "takes messages, and waits for slaves"
    SLAVE = "keeps a copy of its master's log"

    @property
    def is_master(self) -> bool:
        """Does it take messages?"""
        return self is not Role.SLAVE

_TIMES = (
    "slave_timeout_ms",
    "heartbeat_ms",
    "silence_ms",
    "metadata_interval_ms",
    "handshake_ms",
    "controller_heartbeat_ms",
    "controller_timeout_ms",
    "term_interval_ms",
    "sync_state_interval_ms",
    "sync_state_lag_ms",
    "group_interval_ms",
    "not_active_ms",
)

#: After how long a silence others take this broker for dead, at least, if that is not configured.
_SILENCES = (("controller_timeout_ms", 2_000), ("not_active_ms", 10_000))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig:
    """Fixed for the lifetime of a broker; with RocketMQ's keys."""

    role: Role = setting("brokerRole", default=Role.ASYNC_MASTER)
    #: Where slaves connect; None: one above the broker's own, or any free one if that is.
    listen_port: int | None = setting("haListenPort", default=None)
    #: Without a secret, the HA port is not protected: only this machine reaches it by default.
    bind_address: str = setting("pymqHaBindAddress", default="127.0.0.1")
    #: What masters and slaves prove to each other to know. It is given by itself or in a file. A
    #: key without a value is refused, as is one of ``tls_authority``: it would mean no protection.
    secret: str | None = setting("pymqHaSecret", parse=str, secret=True, default=None)
    secret_file: Path | None = setting("pymqHaSecretFile", parse=parse_path, default=None)
    #: With a secret, at which addresses others are trusted without a proof, and spoken with as
    #: RocketMQ does; without one, who may replicate. None: nobody, and this machine.
    networks: tuple[str, ...] | None = setting("pymqHaNetworks", default=None)
    #: How long a proof may take, and a TLS handshake.
    handshake_ms: int = setting("pymqHaHandshakeTimeout", default=5_000)
    #: How many connections the HA port has at most; half of them may be slaves.
    connection_count_max: int = setting("pymqHaConnectionsMax", default=64)
    #: Do those who prove the secret speak TLS?
    tls: bool = setting("pymqHaTls", default=False)
    #: Of this broker: a master needs them, a slave shows them to a master that asks.
    tls_certificate: Path | None = setting("pymqHaTlsCertPath", default=None)
    tls_key: Path | None = setting("pymqHaTlsKeyPath", default=None)
    #: Whose certificates are trusted: a slave needs it, a master that has it asks slaves for one.
    tls_authority: Path | None = setting("pymqHaTlsTrustCertPath", parse=parse_path, default=None)
    #: The name in the certificate of a master; None: its address.
    tls_name: str | None = setting("pymqHaTlsName", default=None)
    #: What slaves are told to connect to; None: the broker's own address.
    advertised_address: str | None = setting("brokerIP2", default=None)
    #: ``host:port`` of the master's HA port; None: as the name servers say.
    master_address: str | None = setting("haMasterAddress", default=None)
    #: How often a slave asks for its master's topics, groups and offsets.
    metadata_interval_ms: int = setting("pymqHaMetadataInterval", default=3_000)
    batch_bytes: int = setting("haTransferBatchSize", default=256 << 10)
    heartbeat_ms: int = setting("haSendHeartbeatInterval", default=5_000)
    silence_ms: int = setting("haHousekeepingInterval", default=20_000)
    #: A slave that lacks fewer bytes of the log counts as in sync.
    gap_max_bytes: int = setting("haMaxGapNotInSync", "haSlaveFallbehindMax", default=256 << 20)
    #: How many brokers must have a message of a SYNC_MASTER, itself included, before it is
    #: acknowledged. (RocketMQ's default is 1: a SYNC_MASTER of 5.x waits for nobody.)
    in_sync_replicas: int = setting("inSyncReplicas", default=2)
    #: Messages are refused while fewer follow closely.
    in_sync_replicas_min: int = setting("minInSyncReplicas", default=1)
    #: Are as many as follow closely enough, down to that minimum?
    in_sync_replicas_auto: bool = setting("enableAutoInSyncReplicas", default=False)
    slave_timeout_ms: int = setting("slaveTimeout", default=3_000)
    #: Are new slaves sent the log from its first file on, also RocketMQ's? Those of pymq are.
    whole_log: bool = setting("pymqHaWholeLog", default=False)
    #: Does a controller say who is the master? ``role`` then says only whether messages wait for
    #: slaves, as those of a SYNC_MASTER do, while this broker is the master.
    controller_mode: bool = setting("enableControllerMode", default=False)
    controllers: tuple[str, ...] = setting("controllerAddr", default=())
    #: How often controllers are told that this broker is alive (RocketMQ: 1000), and after how
    #: long a silence they take it for dead (RocketMQ: 10000); None becomes 2000, or four intervals
    #: if that is more.
    controller_heartbeat_ms: int = setting("brokerHeartbeatInterval", default=300)
    controller_timeout_ms: int = setting("controllerHeartBeatTimeoutMills", default=None)
    #: How often a controller is asked who is the master (RocketMQ: 5000).
    term_interval_ms: int = setting("syncBrokerMetadataPeriod", default=1_000)
    #: How often it is looked who should be in the sync state set (RocketMQ: 5000).
    sync_state_interval_ms: int = setting("checkSyncStateSetPeriod", default=200)
    #: A slave that has not had everything for so long leaves the set (RocketMQ: 15000).
    sync_state_lag_ms: int = setting("haMaxTimeSlaveNotCatchup", default=2_000)
    #: Of several candidates that have the same, the one with the lowest number is elected.
    election_priority: int = setting("brokerElectionPriority", default=(1 << 31) - 1)
    #: Does this broker never become the master, nor is it waited for?
    is_learner: bool = setting("asyncLearner", default=False)
    #: Does a slave act for its master while that is away, and does a master that starts take over
    #: from its slaves? Without a controller only.
    acting_master: bool = setting("enableSlaveActingMaster", default=False)
    #: Does a slave that acts have other groups store what is due: delayed messages, timer messages,
    #: open transactions, popped messages that nobody acknowledged?
    remote_escape: bool = setting("enableRemoteEscape", default=False)
    #: How often name servers are asked who is alive, and after how long a silence they forget us;
    #: None becomes 10000, or four of ``controller_heartbeat_ms`` if that is more.
    group_interval_ms: int = setting("syncBrokerMemberGroupPeriod", default=1_000)
    not_active_ms: int = setting("brokerNotActiveTimeoutMillis", default=None)
    #: Is a broker online at once, without a look at the others of its group?
    skip_pre_online: bool = setting("skipPreOnline", default=False)
    #: Is a new slave to get only the last file of its master's log?
    from_last_file: bool = setting("syncFromLastFile", default=False)

    def __post_init__(self) -> None:
        if self.listen_port is not None and not 0 <= self.listen_port <= 65535:
            raise ConfigurationError(
                f"listen_port={self.listen_port} (haListenPort): expected 0..65535"
            )
        if not 1 <= self.batch_bytes <= PUSH_BYTES_MAX:
            raise ConfigurationError(
                f"batch_bytes={self.batch_bytes} (haTransferBatchSize): expected 1.."
                f"{PUSH_BYTES_MAX}"
            )
        if not 1 <= self.in_sync_replicas_min <= self.in_sync_replicas:
            raise ConfigurationError(
                f"in_sync_replicas_min={self.in_sync_replicas_min} (minInSyncReplicas), "
                f"in_sync_replicas={self.in_sync_replicas} (inSyncReplicas): expected 1 or more, "
                "the minimum not above the other"
            )
        for name, least in _SILENCES:
            if getattr(self, name) is None:
                derived = max(least, _HEARTBEATS * self.controller_heartbeat_ms)
                object.__setattr__(self, name, derived)
        for name in _TIMES:
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name}={getattr(self, name)}: expected 1 or more")
        self._check_silences()
        if self.controller_mode and not self.controllers:
            raise ConfigurationError(
                "controllers (controllerAddr): none, but enableControllerMode=true: give "
                "host:port of each controller, separated by ;"
            )
        if self.controller_mode and self.acting_master:
            raise ConfigurationError(
                "enableSlaveActingMaster=true and enableControllerMode=true: with a controller, a "
                "slave becomes the master; set one of them"
            )
        if self.remote_escape and not self.acting_master:
            raise ConfigurationError(
                "enableRemoteEscape=true without enableSlaveActingMaster=true: only a slave that "
                "acts for its master sends messages to other groups; set both, or none of them"
            )
        for address in self.controllers:
            split_address(address)
        if self.master_address is not None:
            split_address(self.master_address)
        self.allowed_networks()
        self._check_protection()

    def _check_silences(self) -> None:
        least = _HEARTBEATS_MIN * self.controller_heartbeat_ms
        for applies, key, silence_ms, who in (
            (
                self.controller_mode,
                "controllerHeartBeatTimeoutMills",
                self.controller_timeout_ms,
                "controllers would take this broker for dead, and elect another master,",
            ),
            (
                self.acting_master,
                "brokerNotActiveTimeoutMillis",
                self.not_active_ms,
                "name servers would forget this broker",
            ),
        ):
            if applies and silence_ms < least:
                raise ConfigurationError(
                    f"{key}={silence_ms}, brokerHeartbeatInterval={self.controller_heartbeat_ms}: "
                    f"{who} again and again between two of its heartbeats; expected a time-out of "
                    f"{least} or more, {_HEARTBEATS} intervals are better. Without {key} it is set "
                    "by the interval"
                )

    def _check_protection(self) -> None:
        if self.connection_count_max < 2:
            raise ConfigurationError(
                f"connection_count_max={self.connection_count_max} (pymqHaConnectionsMax): "
                "expected 2 or more"
            )
        if self.secret is not None:
            if self.secret_file is not None:
                raise ConfigurationError(
                    "both pymqHaSecret and pymqHaSecretFile are set: expected one of them"
                )
            checked_secret(self.secret, "pymqHaSecret")
        if not self.tls:
            return
        if not self.has_secret:
            raise ConfigurationError(
                "pymqHaTls=true without a secret: everybody could still replicate; set "
                "pymqHaSecret or pymqHaSecretFile, too"
            )
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ConfigurationError(
                "pymqHaTlsCertPath and pymqHaTlsKeyPath: expected both or none of them"
            )
        is_any = self.controller_mode  # it may become both
        if (self.role.is_master or is_any) and self.tls_certificate is None:
            raise ConfigurationError(
                "pymqHaTls=true: a master needs a certificate and its key: set pymqHaTlsCertPath "
                "and pymqHaTlsKeyPath"
            )
        if (not self.role.is_master or is_any) and self.tls_authority is None:
            raise ConfigurationError(
                "pymqHaTls=true: a slave needs the certificate of the authority that made its "
                "master's, or that one itself: set pymqHaTlsTrustCertPath"
            )

    @property
    def has_secret(self) -> bool:
        """Do master and slaves prove to each other who they are?"""
        return self.secret is not None or self.secret_file is not None

    def allowed_networks(self) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
        """Return ``networks``, parsed, or its default.

        Raises:
            ConfigurationError: one of them is not an address or a network.
        """
        networks = self.networks
        if networks is None:
            networks = () if self.has_secret else ("127.0.0.0/8", "::1/128")
        try:
            return [ipaddress.ip_network(network, strict=False) for network in networks]
        except ValueError as error:
            raise ConfigurationError(
                f"networks (pymqHaNetworks): {error}; expected addresses or networks, like "
                "10.1.2.3;10.2.0.0/16"
            ) from error


def checked_secret(text: str, source: str) -> bytes:
    """Return a secret as it is used.

    Args:
        text: as it is configured.
        source: where, for the error.

    Raises:
        ConfigurationError: it is so short that it can be found by trying.
    """
    secret = text.strip().encode()
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigurationError(
            f"{source}: a secret of {len(secret)} B, expected {SECRET_BYTES_MIN} or more; make "
            "one with: openssl rand -hex 32"
        )
    return secret
