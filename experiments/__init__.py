"""Command-line programs: training, evaluation, benchmarks, plots."""
