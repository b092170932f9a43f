"""The administration of the cluster that a test's client is connected to."""

import threading
import weakref

from pymq import blocking
from pymq.client.sockets.blocking_client import BlockingClient

USUAL_S, PATIENT_S = 3.0, 15.0

_admins: weakref.WeakKeyDictionary[BlockingClient, blocking.Admin] = weakref.WeakKeyDictionary()


def admin_of(client: BlockingClient, timeout_s: float | None = None) -> blocking.Admin:
    """Return an Admin of a client's name servers; it is closed when the client is forgotten.

    Args:
        client: names the cluster, and its time-out is the default.
        timeout_s: for each answer. A client's default is short for a busy disk, which has to take
            several files to create a topic, and becomes ``PATIENT_S``.
    """
    admin = _admins.get(client)
    if admin is None:
        config = client._config
        # Shorter ones are meant to be short: somebody is silent.
        usual_s = config.timeout_s if config.timeout_s < USUAL_S else PATIENT_S
        _admins[client] = admin = blocking.Admin(
            client.name_servers,
            timeout_s=timeout_s or usual_s,
            connect_timeout_s=config.connect_timeout_s,
        ).start()
        weakref.finalize(client, _close, admin).atexit = False  # it closes itself then
    return admin


def _close(admin: blocking.Admin) -> None:
    # The garbage is collected in whatever thread: its own cannot wait for its end.
    threading.Thread(target=admin.close).start()
