"""Programs that train, evaluate and plot: `python -m experiments.NAME`."""

import sys

# True while Python looks for the NAME of `python -m experiments.NAME`: before anything that takes
# time is imported. Whoever imports this package from elsewhere keeps the handlers there are.
if sys.argv[:1] == ["-m"]:
    from experiments import interrupts

    interrupts.leave_at_once()
