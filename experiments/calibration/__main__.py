"""`python -m experiments.calibration`."""

import sys

from experiments.calibration import command

if __name__ == "__main__":
    sys.exit(command.main())
