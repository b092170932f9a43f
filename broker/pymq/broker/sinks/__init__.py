"""Exactly-once sinks: batches that consumers see as a whole, and once.

A writer stages the records of a batch, then has it published. ``journal`` keeps the decision about
that, and what else is known of a sink, in a topic; ``state.sinks`` is the same in memory.
``publishing`` copies what was staged to where consumers read.
"""
