"""The small files beside the data: checkpoint, locks, notes of a clean stop, state tables."""
