"""The service *coupons*: what takes something off the price of one order."""
