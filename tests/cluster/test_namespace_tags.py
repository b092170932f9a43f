"""Tags that look like names of a namespace are shown as members subscribe to them."""

from pymq import Message, Network, blocking
from pymq.testing import Cluster


def test_tags_with_the_prefix_of_the_namespace_are_shown_whole() -> None:
    network = Network(namespace="shop")
    with Cluster() as cluster, blocking.Producer(cluster.name_server, network=network) as producer:
        producer.send(Message("orders", b"1", tags="shop%t"))
        consumer = blocking.Consumer(
            cluster.name_server, "billing", from_where="earliest", network=network
        )
        with (
            consumer.subscribe("orders", "shop%t || x"),
            blocking.Admin(cluster.name_server, network=network) as admin,
        ):
            assert consumer.receive(60) is not None
            subscription = admin.groups.members("billing").subscriptions["orders"]
    assert (subscription.topic, subscription.expression) == ("orders", "shop%t || x")
    assert subscription.tags == {"shop%t", "x"}
