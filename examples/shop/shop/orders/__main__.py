"""``python -m shop.orders`` starts the service."""

import sys

from shop.orders.service import ORDERS
from shop.serving import main

if __name__ == "__main__":
    sys.exit(main(ORDERS))
