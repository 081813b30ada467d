"""All cases of the benchmark."""

import types
from collections.abc import Mapping

from experiments.benchmark import agents, loops, runs, solves, tabular
from experiments.benchmark.jobs import Case

CASES: Mapping[str, Case] = types.MappingProxyType(
    {**agents.CASES, **loops.CASES, **solves.CASES, **tabular.CASES, **runs.CASES}
)
