"""`python -m hf_cyclical`: see `cli/commands.py`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
