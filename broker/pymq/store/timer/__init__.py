"""Messages that wait for a time of their own: the timer log, the wheel over it, the checkpoint."""
