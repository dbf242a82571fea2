"""`python -m benchmarks` in a checkout is `refusion bench` of the installed package."""

import sys

from refusion.cli import main

raise SystemExit(main(["bench", *sys.argv[1:]]))
