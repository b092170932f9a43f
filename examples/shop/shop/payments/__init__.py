"""The service *payments*, the front where customers pay and the payment platform calls."""
