"""Seconds of compiled functions, what XLA says they cost, and what the machine does at most."""

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# A row that has taken so many seconds is not repeated any more.
_ENOUGH_SECONDS = 20.0
_LIMIT_CALLS = 2
_PROBE_LENGTH = 7  # of a loop that is counted


class Work(NamedTuple):
    """What one unit, such as a gradient update, takes: by XLA's count, or counted by hand."""

    flops: float
    # Read and written by all operations, wherever the arrays lie; None where they are not counted.
    bytes: float | None


class Limits(NamedTuple):
    """The fastest that this machine was seen to do."""

    flops: float  # per second, of a float32 matrix product at default precision
    bytes: float  # read and written per second, of arrays of the best size
    bytes_beyond_cache: float  # of large arrays

    def or_better(self, other: "Limits") -> "Limits":
        """The better of two measurements in all of it."""
        return Limits(*(max(pair) for pair in zip(self, other, strict=True)))

    def share(self, per_second: float, work: Work) -> tuple[float, str]:
        """The share of the nearer limit that so many units per second reach, and its name."""
        shares = {"compute": per_second * work.flops / self.flops}
        if work.bytes is not None:
            shares["memory"] = per_second * work.bytes / self.bytes
        nearer = max(shares, key=lambda name: shares[name])
        return shares[nearer], nearer


class _Probe(NamedTuple):
    """What the limits are measured with."""

    matmul_size: int
    num_products: int  # of a call, one after the other
    copy_bytes: tuple[int, ...]  # the last is beyond the caches
    copy_total: int  # bytes that a call copies


# So large that starting a call, tens of microseconds, counts for little.
_CPU_PROBE = _Probe(2048, 1, (2**18, 2**20, 2**22, 2**28), 2**28)
_ACCELERATOR_PROBE = _Probe(8192, 4, (2**24, 2**30), 2**33)


class Compiled(NamedTuple):
    """A function that is compiled for its arguments, and how long that took."""

    call: Callable[..., Any]
    seconds: float  # of tracing, lowering and compiling
    cost: Work  # loops counted as the backend counts them

    def work(self, *, per_iteration: float, per_call: float) -> Work:
        """Of one unit.

        Args:
            per_iteration: units of one iteration of the loops in it.
            per_call: units of all iterations.
        """
        units = per_iteration if _counts_loops_once() else per_call
        counted = self.cost.bytes
        return Work(self.cost.flops / units, None if counted is None else counted / units)


class Timing(NamedTuple):
    """Seconds of the calls of a function, compilation apart."""

    warmup_seconds: float  # the first call; for whole runs, the one with an empty cache
    seconds: tuple[float, ...]  # of the others


def compile_for(function: Any, *arguments: Any, **static: Any) -> Compiled:
    """Compiles what `jax.jit` returned for these arguments, the static ones by their names."""
    start = time.perf_counter()
    lowered = function.lower(*arguments, **static)
    compiled = lowered.compile()
    seconds = time.perf_counter() - start
    counts = compiled.cost_analysis() or {}
    # Where products become calls of a vendor's library, only the program as written has them.
    flops = max(counts.get("flops", 0.0), (lowered.cost_analysis() or {}).get("flops", 0.0))
    return Compiled(compiled, seconds, Work(flops, counts.get("bytes accessed")))


def timed(call: Callable[[], Any], repeat: int) -> Timing:
    """Seconds of a first call and of others, until there are `repeat` or they took long.

    Args:
        call: must wait for its result.
        repeat: at least one.
    """
    seconds: list[float] = []
    while len(seconds) <= repeat and (len(seconds) < 2 or sum(seconds) < _ENOUGH_SECONDS):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return Timing(seconds[0], tuple(seconds[1:]))


def limits() -> Limits:
    """Measures this machine's default device, in about a second."""
    probe = _CPU_PROBE if jax.default_backend() == "cpu" else _ACCELERATOR_PROBE
    copies = [_copy_rate(size, probe) for size in probe.copy_bytes]
    return Limits(_matmul_rate(probe), max(copies), copies[-1])


def threads_in_words(count: int) -> str:
    """A number of threads."""
    return "1 thread" if count == 1 else f"{count} threads"


def _matmul_rate(probe: _Probe) -> float:
    x = jnp.ones((probe.matmul_size, probe.matmul_size))
    call = lambda: _products(x, probe.num_products).block_until_ready()
    return probe.num_products * 2 * probe.matmul_size**3 / min(timed(call, _LIMIT_CALLS).seconds)


def _copy_rate(size: int, probe: _Probe) -> float:
    """Bytes per second that `x + 1` reads and writes, of an array of so many bytes."""
    x, count = jnp.zeros(size // 4), max(1, probe.copy_total // size)

    def call() -> None:
        nonlocal x
        x = _copies(x, count).block_until_ready()

    return 2 * size * count / min(timed(call, _LIMIT_CALLS).seconds)


# The numbers of turns are static: a GPU would ask the host at each whether it is the last.
@functools.partial(jax.jit, static_argnums=1)
def _products(x: jax.Array, count: int) -> jax.Array:
    return jax.lax.fori_loop(0, count, lambda _, y: x @ y, x)


@functools.partial(jax.jit, static_argnums=1, donate_argnums=0)
def _copies(x: jax.Array, count: int) -> jax.Array:
    return jax.lax.fori_loop(0, count, lambda _, x: x + 1.0, x)


@functools.cache
def _counts_loops_once() -> bool:
    """Whether XLA's count has the body of a loop once."""
    x = jnp.ones((32, 32))
    once = jax.jit(lambda x: x @ x)
    loop = jax.jit(lambda x: jax.lax.fori_loop(0, _PROBE_LENGTH, lambda _, x: x @ x, x))
    flops = [compile_for(function, x).cost.flops for function in (once, loop)]
    return bool(np.isclose(flops[1], flops[0], rtol=0.5))
