"""Migrations of the service *users*."""
