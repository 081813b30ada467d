"""Names in sections, and Weights & Biases: beginning, going on, doing without."""

import io
import json
import os
import sys
import types

import pytest
from tensorboardX import record_writer

from experiments import online
from experiments.loggers import hyperparameters, tag
from experiments.tensorboard_logger import TensorBoard
from experiments.wandb_logger import Wandb
from tests import events
from tests.run_files import disk_is_full

ABOUT = {"env": "pendulum", "seed": 0, "config": {"risk": 1.0, "critic_hidden": [8, 8]}}


def rows(step):
    return [
        {"step": step, "seed": seed, "eval_return": 10.0 * seed + step, "critic_loss": float("nan")}
        for seed in (0, 1)
    ]


def test_tags():
    assert [tag(name) for name in ("eval_return", "critic_loss", "mean_sqrt_u", "new")] == [
        "eval/return",
        "loss/critic",
        "uncertainty/mean_sqrt_u",
        "other/new",
    ]


def test_hyperparameters_are_flat_and_plain():
    values = hyperparameters(ABOUT)
    assert values["config.risk"] == 1.0
    assert values["config.critic_hidden"] == "[8, 8]"
    assert values["env"] == "pendulum"


class StubRun:
    def __init__(self, **options):
        self.options, self.logged = options, []
        self.id = options["id"] or "abc"

    def log(self, data, step=None):
        self.logged.append((step, data))

    def finish(self):
        self.logged.append("finished")


@pytest.fixture
def stub(monkeypatch):
    begun = []
    module = types.ModuleType("wandb")
    module.Error, module.Video = type("Error", (Exception,), {}), lambda path, format: path
    module.init = lambda **options: begun.append(StubRun(**options)) or begun[-1]
    monkeypatch.setitem(sys.modules, "wandb", module)
    return begun


@pytest.mark.parametrize(("checkpoint", "purged"), [(-1, 0), (20, 21)])
def test_tensorboard_forgets_what_is_logged_again(tmp_path, checkpoint, purged):
    logger = TensorBoard(tmp_path, ABOUT)
    logger.log(rows(0), {})
    logger.rewind(checkpoint)
    logger.log(rows(0 if checkpoint < 0 else 40), {})
    logger.close()
    written = events.read(tmp_path / "seed_1")
    begun = [event.step for event in written if event.WhichOneof("what") == "session_log"]
    assert begun == [purged]


def test_tensorboard_that_cannot_be_written_stops_nobody(tmp_path, capsys, monkeypatch):
    logger = TensorBoard(tmp_path, ABOUT)
    logger.rewind(-1)
    logger.log(rows(0), {})
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", disk_is_full)
        for step in range(20, 400, 20):  # more than any queue holds
            logger.log(rows(step), {})
    error = capsys.readouterr().err
    assert f"step 20 of seed 1 is not in {tmp_path}: [Errno 28] No space left" in error
    logger.log(rows(400), {"steps_per_second": 5.0})  # some space was freed
    logger.close()
    assert not capsys.readouterr().err
    written = events.read(tmp_path / "seed_0")
    begun = [event.step for event in written if event.WhichOneof("what") == "session_log"]
    assert begun == [0]  # and nothing is hidden when it goes on
    there = {(value.tag, event.step) for event in written for value in event.summary.value}
    assert {("eval/return", 0), ("eval/return", 400), ("timing/steps_per_second", 400)} <= there


def test_tensorboard_whose_first_events_cannot_be_written_has_all_of_the_later_ones(
    tmp_path, monkeypatch
):
    logger = TensorBoard(tmp_path, ABOUT)
    with monkeypatch.context() as full:
        full.setattr(
            record_writer, "open_file", lambda _: io.BufferedWriter(io.FileIO("/dev/full", "w"))
        )
        logger.log(rows(0), {})
    logger.log(rows(20), {})
    logger.close()
    TensorBoard(tmp_path, ABOUT).log(rows(40), {})
    tags = [
        value.tag for event in events.read(tmp_path / "seed_0") for value in event.summary.value
    ]
    assert tags.count("eval/return") == 2
    assert sum(tag.startswith("_hparams_") for tag in tags) == 3  # of one description


def test_a_continued_run_goes_on_in_the_same_place(stub, tmp_path):
    logger = Wandb(tmp_path, ABOUT)
    for step in (0, 20, 40):
        logger.log(rows(step), {"steps_per_second": 5.0})
    again = Wandb(tmp_path, ABOUT)
    again.rewind(20)  # back to the checkpoint
    for step in (40, 60):
        again.log(rows(step), {})
    again.close()
    first, second = stub
    assert first.options["id"] is None
    assert second.options["id"] == first.id
    assert [step for step, _ in first.logged] == [0, 20, 40]
    assert first.logged[1][1] == {
        "eval/return": 25.0,
        "seed_0/eval/return": 20.0,
        "seed_1/eval/return": 30.0,
        "timing/steps_per_second": 5.0,
    }
    assert [entry if entry == "finished" else entry[0] for entry in second.logged] == [
        60,
        "finished",
    ]


def test_a_workdir_in_which_nothing_was_logged_begins_anew(stub, tmp_path):
    Wandb(tmp_path, ABOUT).close()
    Wandb(tmp_path, ABOUT | {"seed": 7})
    assert [run.options["id"] for run in stub] == [None, None]


def test_without_an_account_it_is_said_what_to_do(stub, tmp_path, monkeypatch):
    wandb = sys.modules["wandb"]

    def refuse(**options):
        raise wandb.Error("no API key")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(ValueError, match=r"no API key; .*WANDB_MODE=offline"):
        Wandb(tmp_path, ABOUT)


def test_without_the_package_nothing_is_begun(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    workdir = tmp_path / "run"
    arguments = ["--env=gym:tests.short_env:Short-v0", "--termination=never"]
    assert online.main(["online", *arguments, f"--workdir={workdir}", "--wandb"]) == 2
    assert "pip install -e '.[wandb]'" in capsys.readouterr().err
    assert not workdir.exists()


def test_the_package_itself_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for steps in ((0, 20), (20, 40)):
        logger = Wandb(tmp_path, ABOUT)
        for step in steps:
            logger.log(rows(step), {})
        logger.close()
    known = json.loads((tmp_path / "wandb.json").read_text())
    assert known["last_step"] == 40
    folders = sorted((tmp_path / "wandb").glob("offline-run-*"))
    assert folders
    assert all(folder.name.endswith(known["id"]) for folder in folders)
