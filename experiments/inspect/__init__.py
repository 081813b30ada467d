"""Pictures of a saved run's uncertainty: `python -m experiments.inspect`."""
