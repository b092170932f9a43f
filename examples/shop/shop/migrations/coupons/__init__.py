"""Migrations of the service *coupons*."""
