"""`python -m experiments.benchmark`."""

import sys

from experiments.benchmark import command

if __name__ == "__main__":
    sys.exit(command.main())
