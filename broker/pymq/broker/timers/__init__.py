"""Timer messages: delivered at any time their sender asked for, or recalled before.

``parking`` makes the message that waits in the timer topic, ``timers`` keeps the store's wheel and
log (``store.timer``) going, ``delivery`` stores what is due in the topic it is meant for.
"""
