"""Rows of the benchmark as JSON objects and as a Markdown table."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments import markdown
from experiments.benchmark.jobs import Job, Measurement
from experiments.benchmark.measure import Limits, threads_in_words

Row = Mapping[str, Any]

_COLUMNS = (
    *("case", "method", "seeds", "sizes", "per second", "quartiles", "compile s", "first call s"),
    *("calls", "GFLOP", "MB", "share of peak", "limit", "ratio", "baseline"),
)
_TEXTS = ("case", "method", "sizes", "quartiles", "limit", "baseline")
HEADER = markdown.head(_COLUMNS, texts=_TEXTS)
_NONE = "-"


def row(job: Job, measurement: Measurement, limits: Limits) -> dict[str, Any]:
    """A JSON object of what a job found.

    `per_second` is the median of the calls, of all seeds together; `flops` and `bytes` are those of
    one unit.
    """
    seconds = measurement.timing.seconds
    per_second = measurement.units / statistics.median(seconds)
    work, baseline = measurement.work, measurement.baseline
    share, limit = (None, None) if work is None else limits.share(per_second, work)
    lower, upper = np.quantile(measurement.units / np.array(seconds), (0.25, 0.75))
    return {
        "case": job.case,
        "method": job.method,
        "num_seeds": job.num_seeds,
        "sizes": job.sizes,
        "unit": job.unit,
        "per_second": per_second,
        "quartiles": [float(lower), float(upper)],
        "calls": len(seconds),
        "seconds_per_call": statistics.median(seconds),
        "compile_seconds": measurement.compile_seconds,
        "warmup_seconds": measurement.timing.warmup_seconds,
        "details": dict(measurement.details),
        "flops": None if work is None else work.flops,
        "bytes": None if work is None else work.bytes,
        "share_of_peak": share,
        "limit": limit,
        "peak_flops": limits.flops,
        "peak_bytes": limits.bytes,
        "baseline": None if baseline is None else baseline.name,
        "baseline_per_second": None if baseline is None else baseline.per_second,
        "ratio_to_baseline": None if baseline is None else per_second / baseline.per_second,
    }


def heading(about: Mapping[str, Any], limits: Limits) -> str:
    """What holds for all rows: machine, versions, commit, limits and threads."""
    versions = ", ".join(f"{name} {value}" for name, value in about["versions"].items())
    return (
        f"Device: {about['device']}, {threads_in_words(about['threads'])} on the host. "
        f"Versions: {versions}; commit {about['git_commit']}.\n"
        f"Limits: matrix products at default precision {limits.flops / 1e9:.0f} GFLOP/s, copies "
        f"{limits.bytes / 1e9:.0f} GB/s in cache and {limits.bytes_beyond_cache / 1e9:.0f} GB/s "
        "beyond it, measured anew around each row.\n"
        "Per second: median over calls, of all seeds together. GFLOP and MB are of one unit by "
        "XLA's count (fits, rollouts, tabular episodes, sparse solutions: at least, by hand; "
        "factorizations: GFLOP by hand; device loops: updates by hand, the rest of the host's "
        "loop), and the share is of the nearer limit (MB at the rate in cache).\n"
    )


def text(rows: Sequence[Row]) -> str:
    """The table, its heading left out."""
    return "\n".join([HEADER, *map(line, rows)])


def line(row: Row) -> str:
    """A row of the Markdown table."""
    lower, upper = row["quartiles"]
    ratio, share = row["ratio_to_baseline"], row["share_of_peak"]
    cells = (
        row["case"],
        row["method"],
        row["num_seeds"],
        "; ".join([row["sizes"], *(f"{k} {number(v)} s" for k, v in row["details"].items())]),
        f"{number(row['per_second'])} {row['unit']}",
        f"{number(lower)} to {number(upper)}",
        number(row["compile_seconds"]),
        number(row["warmup_seconds"]),
        row["calls"],
        number(row["flops"], 1e9),
        number(row["bytes"], 1e6),
        _NONE if share is None else f"{share:.2%}" if share < 0.01 else f"{share:.0%}",
        row["limit"] or _NONE,
        _NONE if ratio is None else f"{number(ratio)}x",
        row["baseline"] or _NONE,
    )
    return markdown.row(cells)


def number(value: float | None, unit: float = 1.0) -> str:
    """Three digits for a person."""
    if value is None:
        return _NONE
    value /= unit
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
