"""Connections: bytes <-> commands over sockets, and the tasks of a component.

Knows frames, deadlines and back-pressure; does not know what a request means.
"""
