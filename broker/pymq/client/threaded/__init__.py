"""The blocking faces of the asyncio clients, each with an event loop in a thread of its own.

``pymq.blocking`` exports them. Their methods are made of the asyncio ones by ``blocking_face``.
"""
