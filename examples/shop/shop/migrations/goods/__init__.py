"""Migrations of the service *goods*."""
