"""Tables of the broker: topics, groups, offsets, clients, queue locks. No I/O of their own."""
