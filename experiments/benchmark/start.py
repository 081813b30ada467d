"""The case of a whole short online run in a process of its own, from its first line to its end.

The program is observed from outside, by what it prints: nothing in it knows that it is timed.
"""

import functools
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence

from experiments import cost
from experiments.benchmark.agents import NAMES, config_of
from experiments.benchmark.jobs import Baseline, Case, Job, Measurement, Setting
from experiments.benchmark.measure import Limits, Timing
from qusac_jax import environments
from qusac_jax.qusac.config import METHODS

_WARM_RUNS = {False: 2, True: 1}  # by whether the table is quick
_STEPS, _WARMUP = 120, 100
_CONFIG = (
    f"--config.warmup_steps={_WARMUP}",
    "--config.fit_every=50",
    "--config.rollouts_per_step=20",
    "--config.dynamics.max_epochs=3",
    f"--num_steps={_STEPS}",
    f"--eval_every={_STEPS}",
    f"--checkpoint_every={_STEPS}",
    "--eval_episodes=1",
)
# What is printed first after a part of the run, in this order.
_MARKS = {
    "import": "run directory:",
    "first update": "steps will take about",
    "first evaluation": "step 0",
    "whole run": "done:",
}
_COMPILED = re.compile(r"Finished XLA compilation of .* in ([\d.e+-]+) sec")


def jobs(setting: Setting, methods: Sequence[str]) -> Iterator[Job]:
    """A row for each method and number of seeds."""
    task = environments.spec(setting.env).task("never")
    for method in methods:
        for num_seeds in setting.num_seeds:
            yield Job(
                case="start",
                method=method,
                num_seeds=num_seeds,
                sizes=f"small, {_STEPS} steps of {setting.env}",
                unit="first evaluations",
                memory=cost.memory(config_of(method, "small"), task, num_seeds).total,
                calls=f"{1 + _WARM_RUNS[setting.is_quick]} runs of a minute or two",
                measure=functools.partial(_measure, setting, method, num_seeds),
            )


def _measure(setting: Setting, method: str, num_seeds: int, limits: Limits) -> Measurement:
    """With a compilation cache that is warm, beside a run without one."""
    del limits
    with tempfile.TemporaryDirectory() as folder:
        cold, *warm = (
            _parts(setting, method, num_seeds, pathlib.Path(folder), i)
            for i in range(1 + _WARM_RUNS[setting.is_quick])
        )
    seconds = tuple(run["first evaluation"] for run in warm)
    return Measurement(
        units=1.0,
        timing=Timing(cold["first evaluation"], seconds),
        compile_seconds=cold["compiling"],
        baseline=Baseline("no compilation cache", 1 / cold["first evaluation"]),
        details={f"cold {name}": value for name, value in cold.items()}
        | {f"warm {name}": statistics.median(run[name] for run in warm) for name in cold},
    )


def _parts(
    setting: Setting, method: str, num_seeds: int, folder: pathlib.Path, number: int
) -> Mapping[str, float]:
    """Seconds from the start of a run to the end of each part, and those of all compilations."""
    kind = "method" if method in METHODS else "preset"
    command = [sys.executable, "-m", "experiments.online", f"--env={setting.env}", "--size=small"]
    command += [f"--{kind}={method}", f"--num_seeds={num_seeds}", *_CONFIG]
    command += [f"--workdir={folder / str(number)}", f"--device={setting.device}", "--verbosity=-1"]
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_LOG_COMPILES": "1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # this process has most of a GPU's memory
    }
    began = time.perf_counter()
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    parts: dict[str, float] = {}
    compiling, lines = 0.0, []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            for name, mark in _MARKS.items():
                if mark in line:
                    parts.setdefault(name, time.perf_counter() - began)
            if match := _COMPILED.search(line):
                compiling += float(match[1])
    finally:
        process.kill()  # where it was interrupted; otherwise it has ended
        process.wait()
    missing = [name for name in _MARKS if name not in parts]
    if missing:
        raise ValueError(
            f"the run for the case start came to no end ({', '.join(missing)} missing): "
            f"{lines[-1].strip() if lines else 'it printed nothing'}"
        )
    return parts | {"compiling": compiling}


CASES = {
    "start": Case(
        about="whole short runs, each in a process of its own, up to their first evaluation",
        methods=NAMES,
        usual=("upper_bound",),
        quick=(),
        jobs=jobs,
    )
}
