"""`python -m hf_cyclical`, which is `hf-cyclical`: see `cli/dispatch.py`."""

import sys

from hf_cyclical.cli import main

if __name__ == "__main__":
    sys.exit(main())
