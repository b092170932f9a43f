"""Connections: bytes <-> commands over sockets; a component's background tasks.

Knows frames, deadlines and back-pressure; does not know what a request means.
"""
