"""The client: producers, consumers, administration, over asyncio and over plain sockets.

``operations`` builds requests and reads responses, ``routes`` knows queues and addresses; neither
does I/O. On them stand two families: ``pool`` with ``producer``, ``consumer`` and their blocking
faces in ``threaded``; ``blocking_pool`` with ``blocking``, ``bulk_client`` and ``admin``.
"""
