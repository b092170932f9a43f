"""The service *orders*, the front where customers order: it leads the others through an order."""
