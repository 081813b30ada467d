"""Programs that tests start as a person does, and wait for."""

import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).parents[1]


def start(program, *arguments, num_devices=None, **options):
    """Starts `python -m experiments.<program>`; what it prints comes through pipes.

    With `num_devices` the program has so many virtual ones. `options` are those of Popen.
    """
    if num_devices is not None:
        options["env"] = with_devices(num_devices)
    usual = {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-m", f"experiments.{program}", *map(str, arguments)]
    return subprocess.Popen(command, **(usual | options))


def run(program, *arguments, seconds=300, **options):
    """Starts a program and waits for its end: exit code, and what it printed on both outputs."""
    process = start(program, *arguments, **options)
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def with_devices(count):
    """The environment of a program that is to have so many virtual devices."""
    flags = os.environ.get("XLA_FLAGS", "")
    return {**os.environ, "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count={count}"}


def wait_until(condition, *processes, seconds=240):
    """Waits until the condition holds, as long as all processes run and at most so long."""
    deadline = time.monotonic() + seconds
    while not condition():
        if any(process.poll() is not None for process in processes):
            printed = [process.communicate(timeout=300) for process in processes]
            raise AssertionError(f"one has ended too early: {printed}")
        assert time.monotonic() < deadline, f"it is not so after {seconds} seconds"
        time.sleep(0.02)


def has_checkpoint(workdir, step="*"):
    """Whether a run has a complete checkpoint, or the one of that step."""
    return any(workdir.glob(f"checkpoints/{step}/checksums.json"))
