"""What all tests need: settings made before JAX starts, and memory given back."""

import gc
import os
import pathlib
import signal
from collections.abc import Callable, Iterator
from importlib import metadata

# Tests compile many small programs and run each a few times: LLVM's optimization, the newer way to
# generate fused loops and code in many parts cost more than they gain here. Programs that the tests
# start inherit the settings.
os.environ["XLA_FLAGS"] = " ".join(
    (
        os.environ.get("XLA_FLAGS", ""),
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
        "--xla_cpu_parallel_codegen_split_count=1",
        # Gone in 0.11, and XLA ends a process for a setting that it does not know.
        "--xla_cpu_use_fusion_emitters=false" * metadata.version("jaxlib").startswith("0.10."),
    )
).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# What one test has compiled, others and the programs that they start read from the disk.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR",
    str(pathlib.Path(__file__).parents[1] / ".pytest_cache" / "jax"),
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import jax
import pytest

# Where the tests run in the background of a shell, Ctrl-C is ignored, also by programs that they
# start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The workdir of a finished online run of two seeds, to be read only."""
    from experiments import online
    from tests.tiny import ONLINE

    workdir = tmp_path_factory.mktemp("runs") / "run"
    assert online.main(["online", *ONLINE, f"--workdir={workdir}"]) == 0
    return workdir


@pytest.fixture
def run_here(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`experiments.online` in this process, which saves starting one: exit code and output."""
    from experiments import online

    def run(*arguments: str) -> tuple[int, str, str]:
        code = online.main(["online", *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture(scope="module", autouse=True)
def _forget_compiled_functions() -> Iterator[None]:
    """Gives back the memory maps of compiled functions after each file.

    Each function has some, and a process may have 65,530 on Linux: the whole suite came to that,
    and XLA's compiler crashed.
    """
    yield
    jax.clear_caches()
    gc.collect()
