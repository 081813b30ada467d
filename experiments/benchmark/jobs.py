"""What a case consists of: jobs, each of which becomes a row of the table."""

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from experiments.benchmark.measure import Limits, Timing, Work


class Baseline(NamedTuple):
    """What a row is compared with."""

    name: str
    per_second: float  # in the unit of the row


class Measurement(NamedTuple):
    """What a job found."""

    units: float  # that a call counts, of all seeds
    timing: Timing
    compile_seconds: float | None = None
    work: Work | None = None  # of a unit; None where a loop's length is known to nobody before
    baseline: Baseline | None = None
    details: Mapping[str, float] = types.MappingProxyType({})  # seconds of parts, by their names


class Job(NamedTuple):
    """A row that is not measured yet."""

    case: str
    method: str
    num_seeds: int  # R
    sizes: str  # that it has, in words
    unit: str  # what is counted per second
    memory: int  # bytes, about
    calls: str  # how often what is called
    measure: Callable[[], Measurement]
    flops: float | None = None  # of the calls that it takes at least, by hand

    def expectation(self, limits: Limits) -> str:
        """A line that says beforehand what the job takes."""
        seeds = "1 seed" if self.num_seeds == 1 else f"{self.num_seeds} seeds"
        least = ""
        if self.flops is not None:
            least = f", at least {self.flops / limits.flops:.2g} s and compiling"
        memory = f"{self.memory / 1e6:,.0f} MB"
        return f"{self.case} {self.method}, {seeds}: about {memory}, {self.calls}{least}"


class Setting(NamedTuple):
    """What the command line says of all cases."""

    env: str
    device: str  # of `cli.select_device`
    is_quick: bool
    methods: tuple[str, ...] | None  # None for each case's own
    num_seeds: tuple[int, ...]
    repeat: int  # calls of a median
    has_baselines: bool

    @property
    def size(self) -> str:
        """Of the agents, a key of `qusac.presets.SIZES`."""
        return "small" if self.is_quick else "paper"


class Case(NamedTuple):
    """A kind of rows."""

    about: str
    methods: Sequence[str]  # that it knows
    usual: Sequence[str]  # that it takes where the command line names none
    quick: Sequence[str]  # the same of a quick table, which leaves the case out if there are none
    jobs: Callable[[Setting, Sequence[str]], Iterable[Job]]
    starts_programs: bool = False  # on the same device, which must serve several processes

    def chosen(self, setting: Setting) -> Sequence[str]:
        """The methods to take."""
        if setting.methods is not None:
            return [method for method in setting.methods if method in self.methods]
        return self.quick or self.usual if setting.is_quick else self.usual
