"""Real Apache RocketMQ peers, driven from pytest.

``jars`` fetches the official jars, ``processes`` keeps Java children in hand, ``peers`` starts
name servers and brokers, ``jvm`` starts a JVM with the official client in it, ``java_client``
wraps that client for Python. ``README.md`` shows how a test uses them. Nothing here imports pymq.
"""
