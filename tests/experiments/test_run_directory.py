"""What a run directory accepts at its start, and that its files are whole."""

import contextlib
import json
import os
import pathlib
import types

import pytest

from experiments import files, run_directory
from experiments.run_directory import RunDirectory
from experiments.training.checkpoints import RunCheckpoints
from tests.run_files import disk_is_full


@pytest.mark.parametrize("left", [[], [".lock"], ["config.partial"], [".lock", "config.partial"]])
def test_a_start_that_was_cut_short_does_not_lock_the_directory(tmp_path, left):
    for name in left:
        (tmp_path / name).write_text('{"env": ')
    RunDirectory(tmp_path, {"env": "x"}).close()
    assert json.loads((tmp_path / "config.json").read_text()) == {"env": "x"}
    RunDirectory(tmp_path, {"env": "x"}).close()


@pytest.mark.parametrize(("step", "was_saved"), [(100, False), (101, True)])
def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew(tmp_path, step, was_saved):
    config = {"env": "x", "checkpoint_every": 100}
    RunDirectory(tmp_path, config).close()
    (tmp_path / "metrics.csv").write_text(f"step,seed\n50,0\n{step},0\n")
    with contextlib.closing(RunDirectory(tmp_path, config)) as directory:
        setup = types.SimpleNamespace(
            directory=directory,
            processes=types.SimpleNamespace(is_first=True),
            num_steps=1000,
            keep_checkpoints=1,
            restarts_env=False,
        )
        if was_saved:
            with pytest.raises(ValueError, match="has results, but no checkpoint to continue"):
                RunCheckpoints(setup).can_continue("latest")
        else:
            assert not RunCheckpoints(setup).can_continue("latest")
        assert (directory.metrics_size() > 0) == was_saved


@pytest.mark.parametrize("computed", ["metrics.csv", "checkpoints/10", "dynamics/0"])
def test_a_directory_is_its_runs_from_when_something_was_computed(tmp_path, computed):
    program = {"versions": {}, "git_commit": None, "device": "x"}
    RunDirectory(tmp_path, {"env": "y"} | program).close()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "wandb.json").touch()
    RunDirectory(tmp_path, {"env": "x"} | program).close()
    assert json.loads((tmp_path / "config.json").read_text()) == {"env": "x"} | program
    (tmp_path / computed).parent.mkdir(exist_ok=True)
    (tmp_path / computed).write_text("")
    RunDirectory(tmp_path, {"env": "x"}).close()
    with pytest.raises(ValueError, match="other values"):
        RunDirectory(tmp_path, {"env": "y"})
    with pytest.raises(ValueError, match=r"a: None there, 0 now.*f: None there.*; and 2 more\)"):
        RunDirectory(tmp_path, {"env": "x"} | dict.fromkeys("abcdefgh", 0))


@pytest.mark.parametrize(
    ("there", "now", "what"),
    [
        ({"num_episodes": 5}, {"preset": "sac"}, "a tabular run"),
        ({"preset": "sac"}, {"num_episodes": 5}, "no tabular run"),
        ({"model": "theirs"}, {"num_episodes": 5}, "no tabular run"),
    ],
)
def test_a_directory_of_the_other_half_is_named(tmp_path, there, now, what):
    (tmp_path / "config.json").write_text(json.dumps(there))
    (tmp_path / "metrics.csv").touch()
    with pytest.raises(ValueError, match=f"belongs to {what}; choose another workdir"):
        RunDirectory(tmp_path, now)


@pytest.mark.parametrize("other", ["config.json", "notes.txt"])
def test_a_config_of_somebody_else_is_left_alone(tmp_path, other):
    (tmp_path / "config.json").write_text('{"model": "theirs"}')
    (tmp_path / other).write_text('{"model": "theirs"}')
    with pytest.raises(ValueError, match="other values"):
        RunDirectory(tmp_path, {"env": "x"})
    assert (tmp_path / "config.json").read_text() == '{"model": "theirs"}'


def test_a_run_without_its_config_is_not_to_be_emptied(tmp_path):
    (tmp_path / "metrics.csv").write_text("step\n0\n")
    with pytest.raises(ValueError, match=r"config.json is missing; put that back, or choose"):
        RunDirectory(tmp_path, {"env": "x"})


def test_metrics_that_cannot_be_written_are_named(tmp_path, monkeypatch):
    directory = RunDirectory(tmp_path, {"env": "x"})
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", disk_is_full)
        with pytest.raises(OSError, match=r"could not write .*metrics.csv: .*No space.*goes on"):
            directory.log([{"step": 0.0, "seed": 0.0}], {})
    directory.close()


def test_a_full_disk_leaves_the_file_as_it_was_and_takes_no_room(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    new = tmp_path / "new"
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full)
        with pytest.raises(ValueError, match=r"cannot be written.*No space left"):
            RunDirectory(new, {"env": "x"})
    assert [path.name for path in new.iterdir()] == [".lock"]
    directory = RunDirectory(new, {"env": "x"})
    before = (new / "config.json").read_text()
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            directory.accept(0)
    directory.close()
    assert (new / "config.json").read_text() == before
    assert sorted(path.name for path in new.iterdir()) == [".lock", "config.json"]


def test_other_peoples_files_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"is not empty and holds no config\.json"):
        RunDirectory(tmp_path, {"env": "x"})
    with pytest.raises(ValueError, match="is a file"):
        RunDirectory(tmp_path / "notes.txt", {"env": "x"})


def test_the_last_step_is_that_of_a_whole_line(tmp_path):
    directory = RunDirectory(tmp_path, {"env": "x"})
    assert directory.last_step() == 0
    with (tmp_path / "metrics.csv").open("w") as file:
        file.write("step,seed\n10000,0\n11000,0\n12")  # of 12000, killed while it was written
    assert directory.last_step() == 11_000
    (tmp_path / "metrics.csv").write_text("step,seed\nx,0\n")
    with pytest.raises(ValueError, match=r"metrics\.csv.*delete it to begin anew"):
        directory.last_step()
    directory.close()


@pytest.mark.parametrize("damaged", ["10,0,\0\n", "10,0\n", "10,0,0", "\n"])
def test_a_damaged_line_is_found_before_the_run_goes_on(tmp_path, damaged):
    first, last = "step,seed,mean_q\n5,0,1.5\n", "15,0,nan\n"
    text, metrics = f"{first}{damaged}{last}", tmp_path / "metrics.csv"
    directory = RunDirectory(tmp_path, {"env": "x"})
    metrics.write_text(text + "20,0,x\n")  # what comes after the checkpoint is written again
    line = "line [34].*damaged, restore it, or start in another workdir"
    with pytest.raises(ValueError, match=line):
        directory.rewind(len(text), 15)
    assert metrics.read_text() == text + "20,0,x\n"
    metrics.write_text(f"{first}{last}20,0,x\n")
    directory.rewind(len(first + last), 15)
    assert metrics.read_text() == first + last
    directory.close()


@pytest.mark.parametrize("name", ["steps", "num_episodes"])
def test_a_summary_of_what_is_forgotten_goes(tmp_path, name):
    directory = RunDirectory(tmp_path, {"env": "x"})
    summary = tmp_path / "summary.json"
    summary.write_text(json.dumps({name: 12}))
    directory.accept(12)
    assert summary.exists()
    directory.accept(8)
    assert not summary.exists()
    summary.write_text("{")  # who reads it at the end would fail
    directory.accept(8)
    assert not summary.exists()
    directory.close()


def test_what_a_continued_run_does_not_take_over_is_said(tmp_path, capsys):
    ignored = "dynamics=b has no effect: the run goes on from 8 with what it began with, dynamics=a"
    for given, done, said in (("a", 0, ""), (None, 8, ""), ("b", 8, ignored)):
        directory = RunDirectory(tmp_path, {"env": "x", "dynamics": given})
        directory.accept(done)
        directory.close()
        (tmp_path / "metrics.csv").write_text("step,seed\n8,0\n")
        assert said in (err := capsys.readouterr().err)
        assert bool(err) == bool(said)
        assert json.loads((tmp_path / "config.json").read_text())["dynamics"] == "a"


def test_a_checkpoint_that_is_being_written_is_none_yet(tmp_path):
    assert not run_directory.has_checkpoint(None)
    (tmp_path / "checkpoints" / "5000.orbax-checkpoint-tmp").mkdir(parents=True)
    assert not run_directory.has_checkpoint(tmp_path)
    (tmp_path / "checkpoints" / "5000").mkdir()
    assert run_directory.has_checkpoint(tmp_path)


def test_what_loggers_made_at_the_start_is_no_result(tmp_path):
    program = {"versions": {}, "git_commit": None, "device": "x"}
    RunDirectory(tmp_path, {"env": "y"} | program).close()
    for name in ("tensorboard", "wandb"):
        (tmp_path / name).mkdir()
    RunDirectory(tmp_path, {"env": "x"} | program).close()


def test_every_program_that_has_computed_a_part_is_kept(tmp_path):
    config = {"env": "x", "git_commit": None, "device": "cpu"}
    for version, done in (("1", 0), ("2", 8), ("3", 12), ("3", 16)):
        directory = RunDirectory(tmp_path, config | {"versions": {"jax": version}})
        directory.accept(done)
        directory.close()
        (tmp_path / "metrics.csv").write_text("step,seed\n8,0\n")
    found = json.loads((tmp_path / "config.json").read_text())["earlier"]
    assert [(one["until"], one["versions"]["jax"]) for one in found] == [(8, "1"), (12, "2")]


def test_metrics_keep_the_columns_that_they_began_with(tmp_path):
    with contextlib.closing(RunDirectory(tmp_path, {"env": "x"})) as directory:
        directory.log([{"step": 0, "seed": 0, "old": 1.5}], {})
        directory.log([{"new": 7.0, "seed": 0, "step": 5}], {})
    assert (tmp_path / "metrics.csv").read_text() == "step,seed,old\n0,0,1.5\n5,0,nan\n"


def test_a_dataset_may_lie_elsewhere_when_a_run_goes_on(tmp_path):
    dataset = {"dataset": "a", "path": "/here", "sha256": "1"}
    RunDirectory(tmp_path, {"env": "x", "dataset": dataset}).close()
    moved = dataset | {"dataset": "b", "path": "/there", "env_note": "new words"}
    RunDirectory(tmp_path, {"env": "x", "dataset": moved}).close()
    with pytest.raises(ValueError, match=r"dataset\.sha256: '1' there, '2' now"):
        RunDirectory(tmp_path, {"env": "x", "dataset": moved | {"sha256": "2"}})


def test_metrics_that_are_shorter_than_at_the_checkpoint_are_refused(tmp_path):
    with contextlib.closing(RunDirectory(tmp_path, {"env": "x"})) as directory:
        with pytest.raises(ValueError, match=r"metrics.csv is missing, and had 30 bytes when"):
            directory.rewind(30, 5)
        (tmp_path / "metrics.csv").write_text("step,seed\n5,0\n")
        with pytest.raises(ValueError, match=r"metrics.csv has 14 bytes, and had 30 bytes when"):
            directory.rewind(30, 5)
        assert (tmp_path / "metrics.csv").read_text() == "step,seed\n5,0\n"


def test_a_place_that_checkpoints_cannot_be_written_to_is_refused(tmp_path):
    workdir = tmp_path / "l\udce4uf"  # a folder named in Latin-1
    with pytest.raises(ValueError, match=r"workdir .*l.udce4uf' is no path in UTF-8; choose"):
        RunDirectory(workdir, {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [str, pathlib.Path])
def test_a_current_directory_that_is_gone_is_named(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    with pytest.raises(ValueError, match=r"workdir 'run' is no path .*; pass another"):
        RunDirectory(kind("run"), {})
