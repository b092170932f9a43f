"""The client: producers, consumers, administration, over asyncio and over plain sockets.

``operations`` builds requests and reads responses, ``routes`` decides which queue and which
address; neither does I/O, and both faces of the client stand on them.
"""
