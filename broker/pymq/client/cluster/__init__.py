"""A cluster as its clients see it: name servers, routes, connections, heartbeats, namespaces.

``pool`` has one connection for each address of an asyncio client; everything that needs a broker or
a name server asks it. ``config`` and ``network`` are the settings that all clients share.
"""
