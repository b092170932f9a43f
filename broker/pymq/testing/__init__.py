"""An embedded broker for tests: real sockets, real files, ready in a fraction of a second.

::

    from pymq.testing import Cluster

    with Cluster() as cluster:
        producer = Producer(cluster.name_server)

In pytest the fixture ``pymq_cluster`` gives every test one of its own.
"""

from pymq.testing.cluster import Cluster

__all__ = ["Cluster"]
