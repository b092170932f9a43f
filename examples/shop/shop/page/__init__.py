"""The page: place orders, pay and cancel them, and watch what becomes of them."""
