"""What makes replication safe: the secret, TLS, and the addresses that need neither."""

import ipaddress
import logging
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from pymq.broker.replication_config import ReplicationConfig, checked_secret
from pymq.errors import ConfigurationError
from pymq.net.said_once import SaidOnce
from pymq.net.tls import client_context, server_context

_log = logging.getLogger(__name__)

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """How a master and its slaves trust each other.

    Attributes:
        secret: both prove to know it; None: neither does.
        networks: with a secret, where others are trusted without a proof, and spoken with as
            RocketMQ does; without one, who may replicate.
        handshake_s: how long a proof may take.
        tls: returns how this side speaks TLS on a new connection; None: it does not.
        tls_name: the name in a master's certificate; None: its address.
    """

    secret: bytes | None = field(default=None, repr=False)
    networks: Sequence[Network] = ()
    handshake_s: float = 5.0
    tls: Callable[[], ssl.SSLContext] | None = None
    tls_name: str | None = None

    def lists(self, host: str) -> bool:
        """Is an address, as a socket tells it, one of ``networks``?"""
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False  # the peer was gone before it could be asked
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self.networks)


def security_of(config: ReplicationConfig) -> Security:
    """Return how a broker trusts, in the role that it has.

    Raises:
        ConfigurationError: a file cannot be read, or does not hold what it should.
    """
    return Security(
        secret=_secret_of(config),
        networks=config.allowed_networks(),
        handshake_s=config.handshake_ms / 1000,
        tls=_RenewedTls(config).context if config.tls else None,
        tls_name=config.tls_name,
    )


def _secret_of(config: ReplicationConfig) -> bytes | None:
    if config.secret is not None:
        return checked_secret(config.secret, "pymqHaSecret")
    if config.secret_file is None:
        return None
    return _read_secret(config.secret_file)


def _read_secret(path: Path) -> bytes:
    source = f"{path} (pymqHaSecretFile)"
    try:
        text = path.read_text("utf-8")
        is_open = path.stat().st_mode & 0o077
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{source}: {getattr(error, 'strerror', None) or error}; give a text file that can be "
            "read"
        ) from error
    if is_open:
        _log.warning("%s can be read by other users of this machine: chmod 600 %s", source, path)
    return checked_secret(text, source)


class _RenewedTls:
    """TLS with the files as they are: certificates are renewed while a broker runs.

    Raises:
        ConfigurationError: a file cannot be used.
    """

    def __init__(self, config: ReplicationConfig) -> None:
        self._config = config
        self._said = SaidOnce(_log)
        self._seen = self._look()
        self._context = _tls_of(config)

    def context(self) -> ssl.SSLContext:
        """Return how to speak TLS on a new connection."""
        seen = self._look()
        if seen != self._seen:
            try:
                self._context = _tls_of(self._config)
            except ConfigurationError as error:  # perhaps only half of it is written yet
                self._said.warn(
                    "files",
                    "the files of TLS have changed, and cannot be used: %s; what was in them "
                    "before is used, and they are looked at again for each connection",
                    error,
                )
            else:
                self._seen = seen
                self._said.over("files")
                _log.info("the files of TLS have changed; new connections go by them")
        return self._context

    def _look(self) -> list[tuple[int, int, int] | None]:
        """Return what differs when one of the files has been written or replaced."""
        config = self._config
        seen: list[tuple[int, int, int] | None] = []
        for path in (config.tls_certificate, config.tls_key, config.tls_authority):
            try:
                found = None if path is None else path.stat()
            except OSError:
                found = None
            seen.append(found and (found.st_mtime_ns, found.st_size, found.st_ino))
        return seen


def _tls_of(config: ReplicationConfig) -> ssl.SSLContext:
    if config.role.is_master:
        assert config.tls_certificate is not None
        assert config.tls_key is not None
        return server_context(config.tls_certificate, config.tls_key, config.tls_authority)
    assert config.tls_authority is not None
    return client_context(config.tls_authority, config.tls_certificate, config.tls_key)
