"""`python -m experiments.collect`."""

import sys

from experiments.collect import command

if __name__ == "__main__":
    sys.exit(command.main())
