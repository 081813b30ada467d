"""`python -m experiments.suite`."""

import sys

from experiments.suite import command

if __name__ == "__main__":
    sys.exit(command.main())
