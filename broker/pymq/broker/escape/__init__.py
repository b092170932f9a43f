"""What a slave that acts for its master has other groups store (``enableRemoteEscape``).

``brokers`` finds them, ``writer`` sends to them. ``escaping`` begins when the slave acts and ends
before its master is back; ``half_messages`` and ``popped_messages`` are what it looks after besides
the delay levels and timers, which deliver as at a master, with another writer.
"""
