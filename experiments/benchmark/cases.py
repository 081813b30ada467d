"""All cases of the benchmark."""

import types
from collections.abc import Mapping

from experiments.benchmark import agents, solves, tabular
from experiments.benchmark.jobs import Case

CASES: Mapping[str, Case] = types.MappingProxyType(
    {**agents.CASES, **solves.CASES, **tabular.CASES}
)
