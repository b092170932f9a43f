"""``python -m shop.journal`` starts the service."""

import sys

from shop.journal.service import JOURNAL
from shop.serving import main

if __name__ == "__main__":
    sys.exit(main(JOURNAL))
