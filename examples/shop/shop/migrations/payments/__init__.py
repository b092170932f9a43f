"""Migrations of the service *payments*."""
