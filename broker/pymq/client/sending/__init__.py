"""Producers: queue selection, attempts and deadlines, batches, transactions, requests, columns."""
