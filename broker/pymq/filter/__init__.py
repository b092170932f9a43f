"""Filters on messages that a broker evaluates for its consumers."""
