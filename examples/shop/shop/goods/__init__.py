"""The service *goods*: what there is, and how much of it."""
