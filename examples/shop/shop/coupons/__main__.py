"""``python -m shop.coupons`` starts the service."""

import sys

from shop.coupons.service import COUPONS
from shop.serving import main

if __name__ == "__main__":
    sys.exit(main(COUPONS))
