"""Many runs, one figure and one table: `python -m experiments.suite`."""
