"""Says which peers send what cannot be read: each host once.

Load balancers that ask by HTTP whether a server is there do so every few seconds.
"""

import logging
from weakref import WeakKeyDictionary

from pymq.errors import RemoteProtocolError

#: So many hosts are known; then all are forgotten, and said again.
HOSTS_MAX = 1000

_hosts: WeakKeyDictionary[object, set[str]] = WeakKeyDictionary()


def say_invalid(
    log: logging.Logger, owner: object, peer: str, error: RemoteProtocolError
) -> None:
    """Log at WARNING that a connection is closed; at DEBUG if its host was told of before.

    Args:
        log: of the module that closes it.
        owner: what the connections of one server have in common; for each it is said once.
        peer: ``host:port``.
        error: what is wrong with its input.
    """
    hosts = _hosts.setdefault(owner, set())
    host = peer.rpartition(":")[0]
    level = logging.DEBUG if host in hosts else logging.WARNING
    if host not in hosts and len(hosts) >= HOSTS_MAX:
        hosts.clear()
    hosts.add(host)
    log.log(
        level,
        "%s sent an invalid frame; connection closed, and more of that host are logged at DEBUG: "
        "%s",
        peer,
        error,
    )
