"""The push consumer: handlers and loops, in order, broadcasting, in threads."""
