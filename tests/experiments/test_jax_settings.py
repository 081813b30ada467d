"""What programs set of JAX: a folder of compiled functions that cannot harm, and determinism."""

import os
import subprocess
import sys

import jax
import pytest
from absl import flags

from experiments import jax_settings
from tests.programs import ROOT

NAMES = (
    "jax_compilation_cache_dir",
    "jax_compilation_cache_max_size",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_enable_compilation_cache",
    "jax_default_matmul_precision",
)
PROGRAM = """
import sys
import jax
from absl import flags
from experiments import cli, jax_settings
values = flags.FlagValues()
jax_settings.define_flags(values)
work = lambda _: print(jax.jit(lambda x: x @ x.T)(jax.numpy.arange(6.0).reshape(2, 3)).tolist())
sys.exit(cli.run_with(work, values, sys.argv, ""))
"""


@pytest.fixture(autouse=True)
def _settings_as_they_were(monkeypatch):
    before = {name: getattr(jax.config, name) for name in NAMES}
    monkeypatch.setenv("XLA_FLAGS", "--xla_given=1")
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def apply(*arguments):
    values = flags.FlagValues()
    jax_settings.define_flags(values)
    values(["program", *arguments])
    jax_settings.apply(values)


def test_compiled_functions_are_kept_in_the_users_cache_with_a_bound(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jax.config.update("jax_compilation_cache_dir", None)
    apply()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "qusac_jax" / "jax")
    assert 0 < jax.config.jax_compilation_cache_max_size <= 2**30
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 0  # as the environment says


@pytest.mark.parametrize("has_bound", [True, False])
def test_entries_are_removed_only_where_jax_marks_the_whole_ones(tmp_path, monkeypatch, has_bound):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if not has_bound:
        monkeypatch.setenv("JAX_COMPILATION_CACHE_MAX_SIZE", "-1")
    jax.config.update("jax_compilation_cache_max_size", -1)
    jax.config.update("jax_compilation_cache_dir", None)
    entry = tmp_path / "qusac_jax" / "jax" / "one-cache"
    entry.parent.mkdir(parents=True)
    entry.touch()
    apply()
    assert entry.exists() != has_bound  # without an `-atime` file, which goes with a bound


def test_the_environment_goes_before_the_default_and_the_flag_before_both(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    before = jax.config.jax_compilation_cache_dir
    apply()
    assert jax.config.jax_compilation_cache_dir == before == os.environ["JAX_COMPILATION_CACHE_DIR"]
    apply(f"--compilation_cache={tmp_path}/mine")
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "mine")
    assert jax.config.jax_compilation_cache_max_size == -1
    apply("--compilation_cache=off")
    assert not jax.config.jax_enable_compilation_cache
    assert not (tmp_path / "user").exists()


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path, capsys):
    (tmp_path / "file").touch()
    before = jax.config.jax_compilation_cache_dir
    apply(f"--compilation_cache={tmp_path}/file/folder")
    said = capsys.readouterr().err
    assert f"warning: compiled functions are not kept: {tmp_path}/file is a file, no folder" in said
    assert jax.config.jax_compilation_cache_dir == before


@pytest.mark.slow
def test_damaged_entries_change_nothing(tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "XLA_FLAGS": ""}
    del environment["JAX_COMPILATION_CACHE_DIR"]

    def run():
        return subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
        )

    first = run()
    assert first.returncode == 0, first.stderr
    entries = sorted((tmp_path / "qusac_jax" / "jax").glob("*-cache"))
    assert len(entries) > 1
    for entry in entries:
        entry.write_bytes(b"garbage")
    unfinished = entries[0]
    unfinished.with_name(f"{unfinished.name.removesuffix('-cache')}-atime").unlink()
    second = run()
    assert (second.returncode, second.stdout) == (0, first.stdout), second.stderr
    assert f"'{unfinished.name.rpartition('-')[0].rpartition('-')[0]}'" not in second.stderr
    assert unfinished.read_bytes() != b"garbage"


def test_deterministic_adds_to_the_flags_of_xla():
    apply("--deterministic")
    apply("--deterministic")
    assert os.environ["XLA_FLAGS"] == "--xla_given=1 --xla_gpu_deterministic_ops=true"


def test_xla_reads_the_flag_of_deterministic(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS")
    # One that it does not know ends the process, so the flag comes before XLA looks.
    program = (
        "from experiments import jax_settings, online\n"
        "jax_settings._DETERMINISTIC = '--xla_no_such_flag=true'\n"
        "raise SystemExit(online.main(['online', '--size=small', '--memory', *{}]))"
    )
    run = lambda arguments: subprocess.run(
        [sys.executable, "-c", program.format(arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run([]).returncode == 0
    asked = run(["--deterministic"])
    assert asked.returncode != 0
    assert "xla_no_such_flag" in asked.stderr


def test_memory_of_a_gpu_is_taken_at_the_start_unless_told_otherwise(monkeypatch):
    name = "XLA_PYTHON_CLIENT_PREALLOCATE"
    monkeypatch.setenv(name, "")  # so that what is there is put back, also where nothing is
    monkeypatch.delenv(name)
    apply()
    assert os.environ[name] == "true"
    monkeypatch.setenv(name, "false")
    apply()
    assert os.environ[name] == "false"


def test_networks_are_multiplied_as_the_platform_does_it_unless_told_otherwise():
    apply()
    assert jax.config.jax_default_matmul_precision == "default"
    jax.config.update("jax_default_matmul_precision", "highest")
    apply()
    assert jax.config.jax_default_matmul_precision == "highest"
