"""How one controller behaves."""

import ipaddress
from dataclasses import dataclass

from pymq.errors import ConfigurationError
from pymq.protocol.addresses import join_address, split_address
from pymq.settings import setting

DEFAULT_PORT = 9878


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """How one controller behaves; the keys are RocketMQ's, except those that begin with ``pymq``.

    A ``controller.conf`` of RocketMQ can be used as it is: of its peers, the one that is this
    controller says where it listens. Live settings may change while it runs.

    Source: RocketMQ ControllerConfig, NettyServerConfig.
    """

    host: str = setting("bindAddress", default="127.0.0.1")
    #: 0: any free one. None: as the peers say, else ``DEFAULT_PORT``.
    listen_port: int | None = setting("listenPort", default=None)
    #: The host that brokers are told; None: as the peers say, else ``bindAddress``.
    advertised_host: str | None = setting("pymqAdvertisedHost", default=None)
    #: Name of the controllers that belong together: those of one etcd with other names do not
    #: know of each other.
    group: str = setting("controllerDLegerGroup", default="DefaultCluster")
    #: ``n0-host:port``, of all controllers.
    peers: tuple[str, ...] = setting("controllerDLegerPeers", default=())
    #: Which of them is this one.
    self_id: str | None = setting("controllerDLegerSelfId", default=None)
    #: ``file:DIR``, or ``etcd:http://host:2379,http://host2:2379``.
    store: str = setting("pymqControllerStore", default="")
    #: For URLs of https: whose certificates are trusted, and what this controller shows of itself.
    etcd_ca_file: str | None = setting("pymqEtcdCaFile", default=None)
    etcd_certificate_file: str | None = setting("pymqEtcdCertificateFile", default=None)
    etcd_key_file: str | None = setting("pymqEtcdKeyFile", default=None)
    #: After a controller that leads died, another one leads this much later at most.
    etcd_lease_s: int = setting("pymqEtcdLeaseSeconds", default=3)
    #: A connection on which nothing arrives for this long is closed.
    idle_s: int = setting("serverChannelMaxIdleTimeSeconds", default=120)
    #: A broker that beats at least four times as often is gone after this much silence.
    heartbeat_timeout_ms: int = setting("pymqHeartbeatTimeout", default=2_000)
    #: How long a controller that was just started waits for brokers it has not heard of.
    patience_ms: int = setting("pymqStartPatience", default=10_000)
    #: How often it is looked whether a group lacks a master (RocketMQ: 5 s). Most of the time
    #: nothing is found: the end of a connection, or of a heartbeat, is acted upon at once.
    scan_interval_ms: int = setting("scanInactiveMasterInterval", default=1_000)
    election_attempt_count: int = setting("electMasterMaxRetryCount", default=3, live=True)
    #: May a broker become master that may lack acknowledged messages, if there is no other?
    unclean_elections: bool = setting("enableElectUncleanMaster", default=False, live=True)
    notify_brokers: bool = setting("notifyBrokerRoleChanged", default=True, live=True)
    #: May UPDATE_CONTROLLER_CONFIG change live settings? Senders are not authenticated.
    allow_config_update: bool = setting("pymqAllowConfigUpdate", default=False)
    #: Keys that may not even then.
    config_black_list: tuple[str, ...] = setting(
        "configBlackList", default=("configBlackList", "configStorePath")
    )

    def __post_init__(self) -> None:
        for key, value in (
            ("pymqEtcdLeaseSeconds", self.etcd_lease_s - 1),
            ("serverChannelMaxIdleTimeSeconds", self.idle_s),
            ("pymqHeartbeatTimeout", self.heartbeat_timeout_ms),
            ("scanInactiveMasterInterval", self.scan_interval_ms),
            ("electMasterMaxRetryCount", self.election_attempt_count),
        ):
            if value <= 0:
                least = "2" if key == "pymqEtcdLeaseSeconds" else "1"
                raise ConfigurationError(f"{key}: expected at least {least}")
        if self.patience_ms < 0:
            raise ConfigurationError("pymqStartPatience: expected 0 or more")
        self._check_etcd()
        self.peer_addresses()
        if not 0 <= self.port <= 65535:
            raise ConfigurationError(f"listenPort={self.port}: expected 0..65535")

    def _check_etcd(self) -> None:
        # Before anybody is shown the setting, and before it is split: a password may contain
        # anything.
        if self.store.startswith("etcd:") and "@" in self.store:
            raise ConfigurationError(
                "pymqControllerStore (--store): a URL with a name or a password in it, which are "
                "not used, and would be shown to everybody; let etcd ask for the certificate of "
                "its clients, and give pymqEtcdCertificateFile and pymqEtcdKeyFile"
            )
        if (self.etcd_certificate_file is None) != (self.etcd_key_file is None):
            raise ConfigurationError(
                "pymqEtcdCertificateFile and pymqEtcdKeyFile: expected both or none of them"
            )

    def peer_addresses(self) -> dict[str, str]:
        """Return id -> ``host:port`` of the peers.

        Raises:
            ConfigurationError: one is not ``id-host:port``, or this controller is none of them.
        """
        found = {}
        for peer in self.peers:
            name, dash, address = peer.partition("-")
            if not dash:
                raise ConfigurationError(
                    f"controllerDLegerPeers: {peer!r}, expected id-host:port, as n0-10.0.0.1:9878"
                )
            split_address(address)
            found[name] = address
        if found and self.self_id not in found:
            raise ConfigurationError(
                f"controllerDLegerSelfId={self.self_id}: expected one of {', '.join(found)}"
            )
        return found

    @property
    def port(self) -> int:
        """Where it listens."""
        if self.listen_port is not None:
            return self.listen_port
        own = self.peer_addresses().get(self.self_id or "")
        return DEFAULT_PORT if own is None else split_address(own)[1]

    def address(self, port: int) -> str:
        """Return ``host:port`` for brokers.

        Args:
            port: the one that it listens on.

        Raises:
            ConfigurationError: it listens on all addresses, and is not told which one to show.
        """
        own = self.peer_addresses().get(self.self_id or "")
        host = self.advertised_host or (split_address(own)[0] if own else self.host)
        if is_unspecified(host):
            raise ConfigurationError(
                f"bindAddress={host}: brokers cannot connect to that; give pymqAdvertisedHost=, "
                "the address at which they reach this machine"
            )
        return join_address(host, port)


def is_unspecified(host: str) -> bool:
    """Does this mean every address of the machine?"""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
