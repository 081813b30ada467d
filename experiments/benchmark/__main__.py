"""`python -m experiments.benchmark`."""

import sys

import jax

from experiments.benchmark import command

if __name__ == "__main__":
    # What is compiled is timed, too. JAX decides once for a process, so not in `main`, which tests
    # call in theirs.
    jax.config.update("jax_enable_compilation_cache", False)
    sys.exit(command.main())
