"""The client: producers, consumers, administration, over asyncio and over plain sockets.

``operations`` builds requests and reads responses; it does no I/O. On it stand two families: the
asyncio clients in ``sending``, ``consuming`` and ``pulling`` with the ``pool`` of ``cluster``, and
their blocking faces in ``threaded``; and the clients in ``sockets``. ``administration`` stands on
the pool, too.
"""
