"""Migrations of the service *journal*."""
