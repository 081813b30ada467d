"""Cases of whole online runs in processes of their own, from their first lines to their ends.

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
from typing import NamedTuple

from experiments import memory
from experiments.benchmark.agents import NAMES, config_of
from experiments.benchmark.jobs import Baseline, Case, Job, Measurement, Setting
from experiments.benchmark.loops import tasks_on_device_and_host
from experiments.benchmark.measure import Timing
from qusac_jax import environments
from qusac_jax.environments.functional import is_functional
from qusac_jax.qusac.uncertainty import METHODS

_WARM_RUNS = {False: 2, True: 1}  # by whether the table is quick
_WARMUP = 100
_STEPS = 120  # of `start`
_DEVICE_STEPS, _DEVICE_EVALUATIONS = {False: 3000, True: 1000}, 3  # of `device_run`
_LIGHT_MODEL = (
    "--config.fit_every=50",
    "--config.rollouts_per_step=20",
    "--config.dynamics.max_epochs=3",
)
# What is printed first after a part of the run, in this order.
_MARKS = {
    "import": "run directory:",
    "first update": "steps will take about",
    "first evaluation": "step 0",
    "whole run": "done:",
}
# Not printed by runs on the device, whose first call takes all steps up to an evaluation, and by
# those with large states, which do not measure how long they will take.
_MAY_BE_MISSING = "first update"
_COMPILED = re.compile(r"Finished XLA compilation of .* in ([\d.e+-]+) sec")


class _Run(NamedTuple):
    """A run of small networks."""

    env: str
    method: str  # or a preset
    num_seeds: int
    device: str
    flags: tuple[str, ...]

    @property
    def marks(self) -> Mapping[str, str]:
        """What it prints after each of its parts."""
        on_device = is_functional(self.env)
        return {k: v for k, v in _MARKS.items() if not (on_device and k == _MAY_BE_MISSING)}

    def command(self, workdir: pathlib.Path) -> list[str]:
        """To run it in a directory."""
        kind = "method" if self.method in METHODS else "preset"
        command = [sys.executable, "-m", "experiments.online", f"--env={self.env}", "--size=small"]
        command += [f"--{kind}={self.method}", f"--num_seeds={self.num_seeds}", *self.flags]
        return [*command, f"--workdir={workdir}", f"--device={self.device}", "--verbosity=-1"]


def start_jobs(setting: Setting, methods: Sequence[str]) -> Iterator[Job]:
    """A row for each method and number of seeds."""
    flags = (*_LIGHT_MODEL, *_lengths(_STEPS, 1))
    for method in methods:
        for num_seeds in setting.num_seeds:
            run = _Run(setting.env, method, num_seeds, setting.device, flags)
            yield Job(
                case="start",
                method=method,
                num_seeds=num_seeds,
                sizes=f"small, {_STEPS} steps of {setting.env}",
                unit="first evaluations",
                memory=_memory(run),
                calls=f"{1 + _WARM_RUNS[setting.is_quick]} runs of a minute or two",
                measure=functools.partial(_measure, setting, run),
            )


def device_jobs(setting: Setting, methods: Sequence[str]) -> Iterator[Job]:
    """A row for each task that is both on the device and on the host, beside the host's run."""
    steps = _DEVICE_STEPS[setting.is_quick]
    num_runs = (1 + setting.has_baselines) * (1 + _WARM_RUNS[setting.is_quick])
    for on_device, on_host in tasks_on_device_and_host():
        for method in methods:
            for num_seeds in setting.num_seeds:
                flags = _lengths(steps, _DEVICE_EVALUATIONS)
                run = _Run(on_device, method, num_seeds, setting.device, flags)
                yield Job(
                    case="device_run",
                    method=method,
                    num_seeds=num_seeds,
                    sizes=f"small, {steps} steps of {on_device}",
                    unit="whole runs",
                    memory=_memory(run),
                    calls=f"{num_runs} runs",
                    measure=functools.partial(_measure_device, setting, run, on_host),
                )


def _lengths(steps: int, evaluations: int) -> tuple[str, ...]:
    return (
        f"--config.warmup_steps={_WARMUP}",
        f"--num_steps={steps}",
        f"--eval_every={steps // evaluations}",
        f"--checkpoint_every={steps}",
        "--eval_episodes=1",
    )


def _memory(run: _Run) -> int:
    task = environments.spec(run.env).task("never")
    return memory.expected(config_of(run.method, "small"), task, run.num_seeds).total


def _measure(setting: Setting, run: _Run) -> Measurement:
    """Runs with a warm compilation cache, beside the one that finds it empty."""
    cold, warm = _cold_and_warm(setting, run)
    seconds = tuple(parts["first evaluation"] for parts in warm)
    return Measurement(
        units=1.0,
        timing=Timing(cold["first evaluation"], seconds),
        compile_seconds=cold["compiling"],
        baseline=Baseline("no compilation cache", 1 / cold["first evaluation"]),
        details=_named("cold", cold) | _named("warm", _medians(warm)),
    )


def _measure_device(setting: Setting, run: _Run, on_host: str) -> Measurement:
    """Both with a compilation cache that is warm."""
    cold, warm = _cold_and_warm(setting, run)
    details, baseline = _named("cold", cold) | _named("warm", _medians(warm)), None
    if setting.has_baselines:
        host_cold, host_warm = _cold_and_warm(setting, run._replace(env=on_host))
        host = _medians(host_warm)
        baseline = Baseline(f"run of {on_host}", 1 / host["whole run"])
        details |= _named("host cold", host_cold) | _named("host warm", host)
    return Measurement(
        units=1.0,
        timing=Timing(cold["whole run"], tuple(parts["whole run"] for parts in warm)),
        compile_seconds=cold["compiling"],
        baseline=baseline,
        details=details,
    )


def _cold_and_warm(
    setting: Setting, run: _Run
) -> tuple[Mapping[str, float], list[Mapping[str, float]]]:
    """Parts of a run that fills a compilation cache, and of those that find it filled."""
    with tempfile.TemporaryDirectory() as folder:
        count = 1 + _WARM_RUNS[setting.is_quick]
        cold, *warm = (_parts(run, pathlib.Path(folder), number) for number in range(count))
    return cold, warm


def _medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def _named(which: str, parts: Mapping[str, float]) -> dict[str, float]:
    return {f"{which} {name}": value for name, value in parts.items()}


def _parts(run: _Run, folder: pathlib.Path, number: int) -> Mapping[str, float]:
    """Seconds from the start of a run to the end of each part, and those of all compilations."""
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_LOG_COMPILES": "1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # this process has most of a GPU's memory
    }
    began = time.perf_counter()
    process = subprocess.Popen(
        run.command(folder / str(number)),
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
            for name, mark in run.marks.items():
                if mark in line:
                    parts.setdefault(name, time.perf_counter() - began)
            if match := _COMPILED.search(line):
                compiling += float(match[1])
    finally:
        process.kill()  # where it was interrupted; otherwise it has ended
        process.wait()
    missing = [name for name in run.marks if name not in parts and name != _MAY_BE_MISSING]
    if missing:
        raise ValueError(
            f"the run of {run.env} came to no end ({', '.join(missing)} missing): "
            f"{lines[-1].strip() if lines else 'it printed nothing'}"
        )
    return parts | {"compiling": compiling}


CASES = {
    "start": Case(
        about="whole short runs, each in a process of its own, up to their first evaluation",
        methods=NAMES,
        usual=("upper_bound",),
        quick=(),
        jobs=start_jobs,
        starts_programs=True,
    ),
    "device_run": Case(
        about="whole runs of environments on the device, beside the same runs on the host",
        methods=NAMES,
        usual=("sac",),
        quick=(),
        jobs=device_jobs,
        starts_programs=True,
    ),
}
