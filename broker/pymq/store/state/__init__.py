"""The small files beside the data: how far it is on the disk, and what a clean stop left."""
