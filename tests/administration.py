"""The administration of the cluster that a test's client is connected to."""

import weakref

from pymq import blocking
from pymq.client.sockets.blocking_client import BlockingClient

_admins: weakref.WeakKeyDictionary[BlockingClient, blocking.Admin] = weakref.WeakKeyDictionary()


def admin_of(client: BlockingClient, timeout_s: float | None = None) -> blocking.Admin:
    """Return an Admin of a client's name servers; it is closed when the client is forgotten.

    Args:
        client: names the cluster, and its time-out is the default.
        timeout_s: for each answer.
    """
    admin = _admins.get(client)
    if admin is None:
        config = client._config
        _admins[client] = admin = blocking.Admin(
            client.name_servers,
            timeout_s=timeout_s or config.timeout_s,
            connect_timeout_s=config.connect_timeout_s,
        ).start()
        weakref.finalize(client, admin.close)
    return admin
