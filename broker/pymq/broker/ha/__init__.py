"""Replication of the commit log from a master to its slaves.

Source: RocketMQ store.ha.
"""
