"""`python -m edge_rl <door> ...`: the same as `edge-rl <door> ...`."""

import sys

from edge_rl.cli import main

if __name__ == "__main__":
    sys.exit(main())
