"""Settings by which runs are told apart, also those of earlier versions."""

import dataclasses

import pytest

from experiments import run_reader, run_settings
from qusac_jax.qusac.config import Config
from tests.run_files import change_config, rows_for, write_run


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (("qusac", "upper_bound", "member"), "upper_bound"),
        (("qusac", "ensemble_mean", "member"), "ensemble_mean"),
        (("qusac", "ensemble_mean", None), "ensemble_mean"),
        (("qusac", "ensemble_mean", "replay"), "sac"),  # goes on with the agent of an offline SAC
        (("qusac", "ensemble_mean", "model"), "mbpo"),
        (("qusac", "upper_bound", "model"), "upper_bound"),
        (("sac", "ensemble_mean", "replay"), "sac"),
        (("explore", "upper_bound", "member"), "explore upper_bound"),
    ],
)
def test_names_say_what_agents_are(config, name):
    assert run_settings.name_of(*config) == name


def test_a_setting_that_came_later_has_its_default_in_an_earlier_run(tmp_path):
    fields = dataclasses.asdict(Config())
    runs = []
    for seed in range(2):
        run = write_run(tmp_path / str(seed), "pendulum", "pombu", rows_for([seed], [5.0]))
        runs.append(change_config(run, config=fields))
        fields["dynamics"] = {"clip_rewards": False}
        fields.pop("roll_out_every", None)
    assert [curve.label for curve in run_reader.read_runs(runs)] == ["pombu", "pombu"]
    fields["dynamics"]["learn_variance_bounds"] = True  # which runs of today cannot have
    change_config(runs[1], config=fields)
    assert [curve.label for curve in run_reader.read_runs(runs)] == [
        "pombu dynamics.learn_variance_bounds=False",
        "pombu dynamics.learn_variance_bounds=True",
    ]
    fields["dynamics"]["learn_variance_bounds"] = False
    fields["roll_out_every"] = 50
    change_config(runs[1], config=fields)
    labels = [curve.label for curve in run_reader.read_runs(runs)]
    assert labels == ["pombu roll_out_every=0", "pombu roll_out_every=50"]


def test_settings_without_effect_tell_nothing_apart(tmp_path):
    def labels(method, **fields):
        runs = []
        for seed in range(2):
            path = tmp_path / f"{method}{len(list(tmp_path.iterdir()))}"
            config = dataclasses.asdict(Config(method=method))
            run = write_run(path, "pendulum", method, rows_for([seed], [5.0]))
            runs.append(change_config(run, config=config | (fields if seed else {})))
        return {curve.label for curve in run_reader.read_runs(runs)}

    assert labels("ensemble_mean", risk=0.5, unet_steps=3) == {"ensemble_mean"}
    assert labels("pombu", risk=0.5, gap_samples=7) == {"pombu risk=0.5", "pombu risk=1.0"}


def test_reading_a_run_imports_no_method_of_its_owners(tmp_path):
    runs = []
    for seed in range(2):
        path = tmp_path / str(seed)
        run = write_run(path, "pendulum", "not_here:spread", rows_for([seed], [5.0]))
        config = dataclasses.asdict(Config()) | {"method": "not_here:spread", "risk": 1.0 + seed}
        runs.append(change_config(run, config=config))
    labels = {curve.label for curve in run_reader.read_runs(runs)}
    assert labels == {"not_here:spread risk=1.0", "not_here:spread risk=2.0"}


def test_settings_that_only_some_runs_know(tmp_path):
    known, gone = [{"risk": 1.0}, {}], [{"no_longer_there": 1.0}, {}]
    assert run_settings.differing(known) == ["risk"]
    assert run_settings.describe({}, ["risk"]) == ["no risk"]
    assert run_settings.differing(gone) == []  # today's programs do not know it
    assert run_settings.differing([*gone, {"no_longer_there": 2.0}]) == ["no_longer_there"]


def test_hyperparameters_of_a_time_without_groups_have_todays_names(tmp_path, monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class Dynamics:
        hidden: int = 8
        nll_beta: float = 0.75
        max_epochs: int = 50

    @dataclasses.dataclass(frozen=True)
    class Config:
        risk: float = 1.0
        dynamics: Dynamics = Dynamics()

    monkeypatch.setattr(run_settings, "Config", Config)
    monkeypatch.setattr(run_settings.unread, "names", lambda config, is_offline: set())
    rows = rows_for([0], [5.0])
    old = write_run(tmp_path / "old", "pendulum", "pombu", rows)
    earlier = {"risk": 1.0, "dynamics_hidden": 8, "nll_beta": 0.75, "fit_max_epochs": 50}
    change_config(old, config=earlier)
    new = write_run(tmp_path / "new", "pendulum", "pombu", rows)
    dynamics = {"hidden": 8, "nll_beta": 0.5, "max_epochs": 50}
    change_config(new, config={"risk": 1.0, "dynamics": dynamics})
    labels = [curve.label for curve in run_reader.read_runs([old, new])]
    assert labels == ["pombu dynamics.nll_beta=0.75", "pombu dynamics.nll_beta=0.5"]
