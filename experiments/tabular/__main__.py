"""`python -m experiments.tabular`."""

import sys

from experiments.tabular import command

if __name__ == "__main__":
    sys.exit(command.main())
