"""Delayed messages: those of one delay level wait in a queue of their own until they are due.

``parking`` has them wait. ``schedule`` has all levels, ``level`` is one of them, ``due_messages``
makes the copies that are stored in the topics they are meant for. ``state.delay_offsets`` is how
far each level has come.
"""
