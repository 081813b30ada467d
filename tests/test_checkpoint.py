"""Exact round trips, and damage that is noticed."""

import contextlib
import logging
import pathlib
import resource
import sys
import types
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from qusac_jax import _checksums, _orbax_reports, checkpoint
from qusac_jax.checkpoint import LEFT_OUT, Checkpointer, CheckpointError

DEVICE = {"weights": jnp.arange(6.0).reshape(2, 3), "key": jax.random.key(7)}
HOST = {
    "physics": np.array([1 / 3, 2e-300]),
    "counter": np.array([2**63], np.uint64),
    "empty": np.zeros((2, 0)),
    "scalar": np.array(5),
}


def assert_same(restored):
    np.testing.assert_array_equal(restored.device["weights"], DEVICE["weights"])
    assert jnp.issubdtype(restored.device["key"].dtype, jax.dtypes.prng_key)
    np.testing.assert_array_equal(
        jax.random.key_data(restored.device["key"]), jax.random.key_data(DEVICE["key"])
    )
    for name, value in HOST.items():
        assert restored.host[name].dtype == value.dtype, name
        np.testing.assert_array_equal(restored.host[name], value)


def largest_file(directory):
    return max((f for f in directory.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)


@pytest.fixture
def saved(tmp_path):
    checkpointer = Checkpointer(tmp_path / "checkpoints")
    for step in (10, 20, 30):
        checkpointer.save(step, DEVICE, HOST, {"note": step})
    return tmp_path / "checkpoints"


def test_restores_bit_by_bit_in_another_process_state(saved):
    restored = Checkpointer(saved).restore(DEVICE, HOST)
    assert restored.step == 30
    assert restored.metadata == {"note": 30}
    assert_same(restored)


def test_keeps_the_last_two(saved):
    assert Checkpointer(saved).steps() == [20, 30]


@pytest.mark.parametrize("damage", ["truncate", "flip", "delete"])
def test_damage_is_named_and_files_are_left_alone(saved, damage):
    victim = largest_file(saved / "30" / "device")
    content = victim.read_bytes()
    if damage == "truncate":
        victim.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        victim.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    else:
        victim.unlink()
    before = {f: f.read_bytes() for f in saved.rglob("*") if f.is_file()}
    with pytest.raises(CheckpointError, match=rf"damaged: .*{victim.name}"):
        Checkpointer(saved).restore(DEVICE, HOST)
    assert {f: f.read_bytes() for f in saved.rglob("*") if f.is_file()} == before
    good = Checkpointer(saved).restore_latest_good(DEVICE, HOST)
    assert good.step == 20
    assert_same(good)


def test_a_checkpoint_that_a_running_run_has_dropped_is_not_called_damaged(saved):
    reader = Checkpointer(saved)
    assert reader.steps() == [20, 30]
    Checkpointer(saved).save(40, DEVICE, HOST, {})
    with pytest.raises(CheckpointError, match="has saved 40 since; read again"):
        reader.restore(DEVICE, HOST, step=20)


def test_a_run_that_deletes_a_checkpoint_while_they_are_listed_is_asked_again(saved, monkeypatch):
    manager, failures = ocp.CheckpointManager, []

    def deleted_meanwhile(*arguments, **options):
        if len(failures) < 2:
            failures.append(1)
            raise FileNotFoundError(2, "No such file or directory", "10")
        return manager(*arguments, **options)

    monkeypatch.setattr(ocp, "CheckpointManager", deleted_meanwhile)
    assert Checkpointer(saved).steps() == [20, 30]
    assert len(failures) == 2


def test_what_a_killed_save_has_left_goes_with_the_next_save_and_no_reader_removes_it(saved):
    left = saved / "25.orbax-checkpoint-tmp"
    left.mkdir()
    (left / "part").write_bytes(b"0")
    Checkpointer(saved).restore(DEVICE, HOST)
    assert left.exists()
    Checkpointer(saved).save(40, DEVICE, HOST, {})
    assert not left.exists()


def test_foreign_structure_is_refused(saved):
    with pytest.raises(CheckpointError, match="belongs to another program"):
        Checkpointer(saved).restore({"other": jnp.zeros(3)}, HOST)
    with pytest.raises(CheckpointError, match="belongs to another program"):
        Checkpointer(saved).restore_device({"other": LEFT_OUT})


def test_arrays_can_be_left_out(saved):
    read = Checkpointer(saved).restore_device(DEVICE | {"key": LEFT_OUT}, step=20)
    assert read["key"] is LEFT_OUT
    np.testing.assert_array_equal(read["weights"], DEVICE["weights"])


def test_arrays_of_another_shape_are_refused(tmp_path):
    with contextlib.closing(Checkpointer(tmp_path)) as checkpointer:
        checkpointer.save(1, {"a": jnp.ones((2, 3))}, {}, {})
        for like in (np.zeros((5, 5)), jnp.zeros((5, 5))):
            with pytest.raises(CheckpointError):
                checkpointer.restore({"a": like}, {})


def test_what_is_read_as_numpy_has_the_shape_that_is_asked_for(saved):
    weights = np.zeros((2, 3), np.float32)
    read = Checkpointer(saved).restore_device({"weights": weights, "key": LEFT_OUT})
    assert isinstance(read["weights"], np.ndarray)
    np.testing.assert_array_equal(read["weights"], DEVICE["weights"])
    with pytest.raises(CheckpointError, match=r"shape \(2, 3\), not \(3, 2\)"):
        Checkpointer(saved).restore_device({"weights": weights.T, "key": LEFT_OUT})


@pytest.mark.parametrize("is_on_device", [True, False])
def test_there_may_be_nothing_on_one_side(tmp_path, is_on_device):
    there, nothing = {"a": jnp.arange(3)}, {"b": {}}
    both = (there, nothing) if is_on_device else (nothing, jax.tree.map(np.asarray, there))
    with contextlib.closing(Checkpointer(tmp_path)) as checkpointer:
        checkpointer.save(1, *both, {"c": 2})
        restored = checkpointer.restore(*both)
    assert restored.metadata == {"c": 2}
    for saved, read in zip(both, (restored.device, restored.host), strict=True):
        assert jax.tree.structure(read) == jax.tree.structure(saved)
        jax.tree.map(np.testing.assert_array_equal, read, saved)


def test_missing_checkpoint_is_named(tmp_path, saved):
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        Checkpointer(tmp_path / "nowhere").restore(DEVICE, HOST)
    with pytest.raises(CheckpointError, match=r"no checkpoint 25 in .*; there are \[20, 30\]"):
        Checkpointer(saved).restore(DEVICE, HOST, step=25)
    assert not pathlib.Path(tmp_path / "nowhere").exists()


def test_all_damaged_reports_the_latest(saved):
    for step in (20, 30):
        largest_file(saved / str(step) / "device").unlink()
    with pytest.raises(CheckpointError, match="30 is damaged") as raised:
        Checkpointer(saved).restore_latest_good(DEVICE, HOST)
    assert "no other one can be read: start in another workdir" in str(raised.value)


@pytest.mark.parametrize("step", [20, 30])
def test_another_checkpoint_is_advised_only_where_there_is_a_whole_one(saved, step):
    largest_file(saved / str(step) / "device").unlink()
    with pytest.raises(CheckpointError, match=r"use another checkpoint \(--resume=latest_good\)"):
        Checkpointer(saved).restore(DEVICE, HOST, step=step)
    with pytest.raises(CheckpointError, match="Nothing was changed; ask"):
        Checkpointer(saved, remedy="ask").restore(DEVICE, HOST, step=step)


def test_a_directory_may_be_named_from_home(saved, monkeypatch):
    monkeypatch.setenv("HOME", str(saved.parent))
    assert Checkpointer(f"~/{saved.name}").steps() == [20, 30]


def test_later_checkpoints_can_be_dropped(saved):
    Checkpointer(saved).delete_after(20)
    assert Checkpointer(saved).steps() == [20]


def test_unwritable_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(CheckpointError, match="could not write checkpoint 1"):
        Checkpointer(tmp_path / "file" / "checkpoints").save(1, DEVICE, HOST, {})


def test_a_full_disk_is_one_error_without_tracebacks(saved, caplog):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    large = {**DEVICE, "large": jax.random.normal(jax.random.key(0), (200_000,))}
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        message = r"could not write checkpoint 40 to .*checkpoints: File too large; free disk space"
        with pytest.raises(CheckpointError, match=message):
            Checkpointer(saved).save(40, large, HOST, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "Traceback" not in caplog.text
    assert Checkpointer(saved).restore(DEVICE, HOST).step == 30


@pytest.mark.parametrize("between", ["", "[tensorstore_spec='{\"assume\": true}'] "])
def test_the_cause_is_what_the_system_says_whatever_else_tensorstore_adds(between):
    said = f"Error writing \"x\": Failed to write 9 bytes: No space {between}[os_error_code='28']"
    assert checkpoint._cause(ValueError(said)) == "No space left on device"
    assert checkpoint._cause(ValueError("of another kind\nin detail")) == "of another kind"


def test_what_fails_after_a_failure_was_raised_is_not_reported(monkeypatch, caplog):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    caplog.set_level(logging.WARNING, "absl")
    late = types.SimpleNamespace(exc_value=RuntimeError("Event loop is closed"))
    other = types.SimpleNamespace(exc_value=RuntimeError("of somebody else"))
    tasks = logging.getLogger("asyncio")
    tasks.removeFilter(_orbax_reports._is_of_others)  # which another failure may have left

    def fail_late():
        caplog.clear()
        reported.clear()
        sys.unraisablehook(late)
        sys.unraisablehook(other)
        tasks.error("Task exception was never retrieved: orbax/serialization.py")
        tasks.error("Task exception was never retrieved: somebody.py")
        return len(reported), len(caplog.records)

    assert fail_late() == (2, 2)
    with _orbax_reports.without_reports():
        assert fail_late() == (1, 1)
    assert fail_late() == (2, 2)
    with pytest.raises(OSError, match="full"), _orbax_reports.without_reports():
        raise OSError("full")
    assert fail_late() == (1, 1)
    assert reported == [other]
    assert "somebody.py" in caplog.text
    tasks.removeFilter(_orbax_reports._is_of_others)


def test_a_checkpoint_whose_checksums_cannot_be_written_is_said_to_be_whole(saved, monkeypatch):
    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_checksums, "write", full)
    message = r"could not write the checksums of checkpoint 40 .*No space.* itself is whole"
    with pytest.raises(CheckpointError, match=message):
        Checkpointer(saved).save(40, DEVICE, HOST, {})
    assert Checkpointer(saved).restore(DEVICE, HOST).step == 40


def test_steps_are_saved_in_order(saved):
    with pytest.raises(CheckpointError, match=r"there are later checkpoints, \[20, 30\]"):
        Checkpointer(saved).save(25, DEVICE, HOST, {})


def test_checksums_do_not_depend_on_the_size_of_blocks(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"0123456789")
    assert _checksums._compute(tmp_path) == {"file": zlib.crc32(b"0123456789")}
    monkeypatch.setattr(_checksums, "_BLOCK", 3)
    assert _checksums._compute(tmp_path) == {"file": zlib.crc32(b"0123456789")}


def test_checksums_of_another_kind_are_damage(saved):
    (saved / "30" / "checksums.json").write_text("[1]")
    assert Checkpointer(saved).restore_latest_good(DEVICE, HOST).step == 20


def test_metadata_are_those_of_the_latest(saved):
    assert Checkpointer(saved).metadata() == {"note": 30}
