"""The parts of ``Admin``: topics, groups, offsets, messages, brokers, replicas, sinks.

Settings of topics and groups live in each broker, so what changes them is done on every master of
a cluster, and what reads them is merged over the masters. ``asking`` does both: all masters are
asked together, and an error says of each what happened there.
"""
