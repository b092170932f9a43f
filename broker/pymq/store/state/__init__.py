"""The small files next to the data: checkpoint, locks, the record of a clean stop, state tables."""
