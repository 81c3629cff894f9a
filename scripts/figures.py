"""`hf-cyclical figures` as a script."""

import sys

from hf_cyclical.cli import main

if __name__ == "__main__":
    sys.exit(main(["figures", *sys.argv[1:]]))
