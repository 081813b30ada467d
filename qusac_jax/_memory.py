"""How much memory there is, to refuse what does not fit before it is asked for.

An array that is far too large ends the interpreter in XLA, without an exception.
"""

import os
import pathlib
from typing import Any

import jax

_MEMINFO = pathlib.Path("/proc/meminfo")
# Of the container that this process is in, if it is in one: cgroups of version 2 and 1, each with
# its limit, what is used, and of that the page cache that the kernel would give up.
_GROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    (
        "/sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)


def available(device: Any = None) -> int | None:
    """Bytes that JAX can still take on a device; of a CPU, those that are free.

    None if the device does not tell.

    Args:
        device: of JAX; by default the one that arrays are put on.
    """
    device = jax.devices()[0] if device is None else device
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        limit = stats.get("bytes_limit")
        return None if limit is None else limit - stats.get("bytes_in_use", 0)
    return host_available()


def host_available() -> int | None:
    """Bytes that are free on the host, or all that it has where the system does not say more."""
    sizes = [_free_or_all(), *(_free_in_group(*group) for group in _GROUPS)]
    return min((size for size in sizes if size is not None), default=None)


def check(needed: int, what: str, remedy: str, *, is_on_host: bool = False) -> None:
    """Raises `ValueError` if so many bytes are more than there is.

    Args:
        needed: bytes.
        what: takes them; the subject of the message.
        remedy: ends the message.
        is_on_host: whether it is the host's memory, not that of the default device.
    """
    free = host_available() if is_on_host else available()
    if free is not None and needed > free:
        raise ValueError(
            f"{what} would take about {in_words(needed)} of memory, but {in_words(free)} are "
            f"free; {remedy}"
        )


def in_words(size: float) -> str:
    """Bytes for a person."""
    if size >= 1e15:
        return f"{size / 1e9:.1g} GB"
    if size >= 1e12:
        return f"{size / 1e9:,.0f} GB"
    return f"{size / 1e9:.3g} GB" if size >= 1e8 else f"{size / 1e6:.3g} MB"


def _free_or_all() -> int | None:
    try:
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _free_in_group(folder: str, limit: str, used: str, cache: str) -> int | None:
    """Bytes that a cgroup leaves; None if it is not there or has no limit ("max")."""
    group = pathlib.Path(folder)
    try:
        free = int((group / limit).read_text())
    except (OSError, ValueError):
        return None
    try:
        free -= int((group / used).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        free += int(stat[cache])
    except (OSError, ValueError, KeyError):  # the limit still holds
        pass
    return max(free, 0)
