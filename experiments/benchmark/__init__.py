"""Speed beside the machine's limits and plain baselines: `python -m experiments.benchmark`."""
