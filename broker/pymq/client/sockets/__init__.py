"""Clients over plain sockets, without an event loop: for Spark, tools and scripts.

``blocking_client`` asks and waits; ``bulk_client`` adds what moves many messages.
"""
