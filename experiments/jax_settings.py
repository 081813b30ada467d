"""The one place where programs configure JAX before its backends start.

Environment variables take precedence over what is set here.
"""

import os
import pathlib
import tempfile
from typing import Any

import jax
from absl import flags

from experiments import distributed, files, path_flag

_CONFIG: Any = jax.config  # has an attribute for each setting
_OFF = "off"
_CACHE_SIZE = 2**30  # bytes; the programs of a run take 2 to 20 million
_LEAST_COMPILE_TIME = 0.1  # seconds; what takes less is compiled anew
# Implies that kernels are not chosen by how fast they are here and at this moment.
_DETERMINISTIC = "--xla_gpu_deterministic_ops=true"


def define_flags(values: flags.FlagValues, *, with_cache: bool = True) -> None:
    """Adds the flags that say where and how JAX computes.

    Args:
        values: to add them to.
        with_cache: whether the program keeps what it compiles.
    """
    define: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_enum("device", "auto", ["auto", "cpu", "gpu", "tpu"], "where to compute", **define)
    if with_cache:
        path_flag.define(
            values,
            "compilation_cache",
            None,
            f"folder in which compiled functions are kept for later runs; {_OFF} for none; default "
            "JAX_COMPILATION_CACHE_DIR, or qusac_jax/jax in the user's cache",
        )
    flags.DEFINE_boolean(
        "deterministic",
        False,
        "make results reproducible on a GPU, too, which is then slower; on a CPU they always are",
        **define,
    )


def apply(options: Any) -> None:
    """Sets what the flags say, and what no flag is for, before the first array is made.

    Args:
        options: the flags; those of `define_flags` may be missing.
    """
    # A run reserves its share of a GPU's memory when it begins: nobody else can then take what it
    # was predicted to need.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "true")
    # Of networks: what is fast on each platform. Solvers ask for all digits themselves.
    if _CONFIG.jax_default_matmul_precision is None:
        _CONFIG.update("jax_default_matmul_precision", "default")
    if "deterministic" in options and options.deterministic:
        given = os.environ.get("XLA_FLAGS", "")
        if _DETERMINISTIC not in given:
            os.environ["XLA_FLAGS"] = f"{given} {_DETERMINISTIC}".strip()
    if "compilation_cache" in options:
        _set_cache(options.compilation_cache)
    if "distributed" in options:
        distributed.connect(options)


def _set_cache(given: str | None) -> None:
    """Says where compiled functions are kept; a folder that the user names has no size limit."""
    if given == _OFF:
        _CONFIG.update("jax_enable_compilation_cache", False)
        return
    if given is None and _CONFIG.jax_compilation_cache_dir:
        return
    try:
        path = pathlib.Path(given) if given else _user_folder()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except (OSError, RuntimeError) as error:
        cause = files.why(error) if isinstance(error, OSError) else error
        files.warn(
            f"compiled functions are not kept: {cause}; use --compilation_cache=FOLDER or "
            f"--compilation_cache={_OFF}"
        )
        return
    _CONFIG.update("jax_compilation_cache_dir", str(path.absolute()))
    _update("jax_persistent_cache_min_compile_time_secs", _LEAST_COMPILE_TIME)
    if given is None:
        _update("jax_compilation_cache_max_size", _CACHE_SIZE)
        if _CONFIG.jax_compilation_cache_max_size != -1:  # of no limit, no entry has an `-atime`
            _remove_unfinished(path)


def _user_folder() -> pathlib.Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (pathlib.Path(cache) if cache else pathlib.Path.home() / ".cache") / "qusac_jax" / "jax"


def _update(name: str, value: float) -> None:
    if name.upper() not in os.environ:
        _CONFIG.update(name, value)


def _remove_unfinished(path: pathlib.Path) -> None:
    """Deletes entries that a killed process has half written, which have no `-atime` file yet.

    JAX writes that file after the entry. It would fail at a half-written one in every run: when it
    reads the entry, and when it writes others.
    """
    for entry in path.glob("*-cache"):
        if not entry.with_name(f"{entry.name.removesuffix('-cache')}-atime").exists():
            entry.unlink(missing_ok=True)
