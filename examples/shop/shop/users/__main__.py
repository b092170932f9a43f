"""``python -m shop.users`` starts the service."""

import sys

from shop.serving import main
from shop.users.service import USERS

if __name__ == "__main__":
    sys.exit(main(USERS))
