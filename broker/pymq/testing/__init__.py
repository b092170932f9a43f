"""An embedded broker for tests: real sockets, real files, ready in a fraction of a second.

::

    from pymq.testing import Cluster

    with Cluster() as cluster:
        producer = Producer(cluster.name_server)

In pytest the fixture ``pymq_cluster`` gives every test a cluster of its own. pytest imports this
package in every run wherever pymq is installed, so nothing is loaded before it is used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pymq.testing.cluster import Cluster
    from pymq.testing.cluster_clock import ClusterClock
    from pymq.testing.handles import BrokerHandle, LastingFault, NamesrvHandle
    from pymq.testing.until import wait_until, wait_until_async
else:
    _HOMES = {
        "Cluster": "cluster",
        "ClusterClock": "cluster_clock",
        "BrokerHandle": "handles",
        "LastingFault": "handles",
        "NamesrvHandle": "handles",
        "wait_until": "until",
        "wait_until_async": "until",
    }

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from pymq.extras import imported

        return getattr(imported(f"pymq.testing.{_HOMES[name]}"), name)


__all__ = [
    "BrokerHandle",
    "Cluster",
    "ClusterClock",
    "LastingFault",
    "NamesrvHandle",
    "wait_until",
    "wait_until_async",
]
