"""Consume queues: per (topic, queue id) where its records lie in the log."""
