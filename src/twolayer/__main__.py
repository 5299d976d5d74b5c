"""``python -m twolayer`` is the command ``twolayer``."""

import sys

from twolayer.cli import main

if __name__ == "__main__":
    sys.exit(main())
