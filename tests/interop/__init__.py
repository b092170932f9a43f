"""Real Apache RocketMQ peers, driven from pytest.

``jars`` fetches the official jars, ``processes`` keeps Java children in hand, ``peers`` starts
name servers and brokers, ``jvm`` starts a JVM with the official client in it, ``java_client`` and
``java_admin`` wrap that client for Python, ``java_values`` holds what crosses. None of these
imports pymq. A test takes the fixtures of ``conftest``::

    @pytest.mark.interop
    def test_something(java_client, real_cluster, java_admin):
        client, cluster = java_client("5.3.3"), real_cluster("4.9.7")
        address = cluster.name_server.address
        java_admin("5.3.3", address).create_topic("orders")
        with JavaProducer(client, "producers", address) as producer:
            producer.send("orders", b"one", tags="a")
        with JavaPushConsumer(client, "consumers", address, "orders") as consumer:
            (message,) = consumer.wait_count(1)

What surprises: a JVM answers ``None`` to a Python int as key of a map with Long keys (use
``java_values.map_items``); a consumer learns of a topic made later, its own retry topic too, at
its next rebalance, some seconds later; a clean stop of a 5.x broker takes ten to
seventeen seconds.
"""
