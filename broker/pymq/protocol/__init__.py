"""Bytes and values of the remoting protocol: frames, headers, bodies, messages, records.

Nothing here touches a socket, a file, a thread or the clock.
"""
