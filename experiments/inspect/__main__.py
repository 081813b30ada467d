"""`python -m experiments.inspect`."""

import sys

from experiments.inspect import command

if __name__ == "__main__":
    sys.exit(command.main())
