"""The service *journal*: one entry for each payment."""
