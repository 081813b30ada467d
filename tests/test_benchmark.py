"""The benchmark runs at small sizes; mistakes show before it computes."""

import dataclasses
import json

import pytest

from experiments import benchmark
from qusac_jax.qusac import presets


@pytest.mark.slow
def test_all_is_timed_and_written(tmp_path, capsys, monkeypatch):
    config = dataclasses.replace(
        presets.get("qusac", "small"),
        num_members=2,
        batch_size=8,
        updates_per_step=1,
        actor_hidden=(8,),
        critic_hidden=(8,),
        unet_hidden=(8,),
        replay_capacity=200,
        warmup_steps=100,
        rollouts_per_step=2,
        fit_every=2,
        rollout_length=1,
    )
    dynamics = dataclasses.replace(config.dynamics, hidden=(8,), max_epochs=1)
    config = dataclasses.replace(config, dynamics=dynamics)
    monkeypatch.setattr(benchmark, "Config", lambda: config)
    output = tmp_path / "numbers.json"
    argv = ["benchmark", "--methods=upper_bound", "--env=pendulum", "--repeats=3", "--data=100"]
    assert benchmark.main([*argv, "--model_repeats=1", f"--output={output}"]) == 0
    printed = capsys.readouterr().out
    assert "| upper_bound |" in printed
    assert "environment steps/s on the host" in printed
    (row,) = json.loads(output.read_text())["rows"]
    assert row["method"] == "upper_bound"
    assert row["compilations"] == 1
    assert row["updates_per_second"] > 0


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--methods=", "methods must name at least one method or preset to time, got none"),
        ("--methods=mbpoo", "'mbpoo' is neither a method nor a preset (did you mean 'mbpo'"),
        ("--env=pendulums", "there is no environment 'pendulums' (did you mean 'pendulum'"),
        ("--output=/proc/numbers.json", "output '/proc/numbers.json' cannot be written"),
        ("--repeats=2", "repeats"),
    ],
)
def test_mistakes_show_before_it_computes(argument, message, capsys, monkeypatch):
    monkeypatch.setattr(benchmark, "matmul_peak", None)
    assert benchmark.main(["benchmark", argument]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
