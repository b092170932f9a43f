"""What members of a group do, however they hand messages out: queues, offsets, retries.

Allocation and rebalance decide which queues are ours, ``queue_reader`` pulls ahead from one of them
into ``inbox``, and ``process_queue`` knows which offset may be committed.
"""
