"""The service *users*: balance and points."""
