"""Migrations of all services; each has its own line of revisions."""
