"""Migrations of the service *orders*."""
