"""``python -m shop.payments`` starts the service."""

import sys

from shop.payments.service import PAYMENTS
from shop.serving import main

if __name__ == "__main__":
    sys.exit(main(PAYMENTS))
