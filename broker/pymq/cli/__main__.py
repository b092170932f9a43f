"""``python -m pymq.cli``: the same as the console script ``pymq``."""

import sys

from pymq.cli.main import main

sys.exit(main())
