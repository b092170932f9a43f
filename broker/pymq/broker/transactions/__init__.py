"""Transactions: messages that are seen once their producer says so, or never.

``messages`` makes half messages and committed ones, ``transactions`` ends transactions, ``start``
finds out at a start which ones are open, ``checks`` asks producers about those that nobody ends,
``discarded`` knows those that were asked about too often. ``state.transactions`` is the table of
what is open.
"""
