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
else:

    def __getattr__(name: str) -> object:
        if name != "Cluster":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from pymq.testing.cluster import Cluster

        return Cluster


__all__ = ["Cluster"]
