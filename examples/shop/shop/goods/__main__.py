"""``python -m shop.goods`` starts the service."""

import sys

from shop.goods.service import GOODS
from shop.serving import main

if __name__ == "__main__":
    sys.exit(main(GOODS))
