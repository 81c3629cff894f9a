"""`hf-cyclical prune` as a script, for accelerate launch and torchrun."""

import sys

from hf_cyclical.cli import main

if __name__ == "__main__":
    sys.exit(main(["prune", *sys.argv[1:]]))
