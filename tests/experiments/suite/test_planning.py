"""The runs of a suite, before any begins."""

import json

import pytest

from experiments.suite import command as suite
from experiments.suite import planning
from experiments.suite.planning import Combinations, plan
from experiments.suite.programs import Checked


def test_plan_has_every_combination_the_first_seeds_first(tmp_path):
    wanted = Combinations(["gym:Pendulum-v1"], ["mbpo", "upper_bound"], ["4-5", "0-1"])
    runs = plan(wanted, 2, ["--size=small"], tmp_path)
    names = [run.name for run in runs]
    assert names == [
        "gym_Pendulum-v1-mbpo-s0-1",
        "gym_Pendulum-v1-upper_bound-s0-1",
        "gym_Pendulum-v1-mbpo-s4-5",
        "gym_Pendulum-v1-upper_bound-s4-5",
    ]
    assert runs[2].arguments == (
        "--env=gym:Pendulum-v1",
        "--preset=mbpo",
        "--num_seeds=2",
        "--size=small",
        "--seed=4",
        f"--workdir={tmp_path / names[2]}",
    )
    assert runs[1].arguments[1] == "--method=upper_bound"
    assert runs[0].num_steps == 500_000


def test_plan_takes_a_preset_with_another_method(tmp_path):
    wanted = Combinations(["pendulum"], ["paper:ensemble_mean"], ["0"])
    (planned,) = plan(wanted, 1, (), tmp_path)
    assert planned.name == "pendulum-paper+ensemble_mean-s0"
    assert planned.arguments[1:3] == ("--preset=paper", "--method=ensemble_mean")


def test_plan_takes_a_method_of_ones_own(tmp_path):
    own = "tests.own_functions:spread"
    wanted = Combinations(["pendulum"], [own, f"paper:{own}"], ["0"])
    runs = plan(wanted, 1, (), tmp_path)
    names = [
        "pendulum-tests.own_functions+spread-s0",
        "pendulum-paper+tests.own_functions+spread-s0",
    ]
    assert [run.name for run in runs] == names
    assert runs[0].arguments[1] == f"--method={own}"
    assert runs[1].arguments[1:3] == ("--preset=paper", f"--method={own}")
    # In its own words, and not in those of a preset that is misspelt.
    with pytest.raises(ValueError, match=r"methods: the module '.*functions' has no qusac"):
        plan(Combinations(["pendulum"], [f"{own}er"], ["0"]), 1, (), tmp_path)
    with pytest.raises(ValueError, match="methods: the module of 'papr:mine' cannot be imported"):
        plan(Combinations(["pendulum"], ["papr:mine"], ["0"]), 1, (), tmp_path)
    with pytest.raises(ValueError, match=r"of_members' must return float32\["):
        plan(Combinations(["pendulum"], ["tests.own_functions:of_members"], ["0"]), 1, (), tmp_path)


def test_each_run_of_a_plan_has_a_directory_of_its_own(tmp_path, monkeypatch):
    wanted = Combinations(["pendulum"], ["explore:upper_bound", "explore_upper_bound"], ["0"])
    assert len({run.path for run in plan(wanted, 1, (), tmp_path)}) == 2
    monkeypatch.setattr(planning, "_checked", lambda *_: Checked(1, {"config": {}}))
    with pytest.raises(ValueError, match="two of them would have the directory 'a_b-sac'"):
        plan(Combinations(["a:b", "a_b"], ["sac"], ["0"]), 1, (), tmp_path)


@pytest.mark.parametrize("flag", ["--seed=0", "--seed=0,1", "-seed=x", "--seed 3"])
def test_what_a_suite_sets_itself_is_named_before_its_value_is_read(tmp_path, flag):
    wanted = Combinations(["pendulum"], ["sac"], ["0"])
    with pytest.raises(ValueError, match="seed is what a suite sets for each run; use --seeds"):
        plan(wanted, 1, flag.split(), tmp_path)
    with pytest.raises(ValueError, match="mean '--num_steps' or '--num_seeds' or '--c"):
        plan(wanted, 1, ["--num_stepz=4"], tmp_path, ["num_seeds"])


def test_what_a_suite_sets_itself_is_in_no_flag_file_either(tmp_path):
    (tmp_path / "flags").write_text("--env=acrobot\n")
    with pytest.raises(ValueError, match="env is what a suite sets for each run; use --tasks"):
        plan(
            Combinations(["pendulum"], ["sac"], ["0"]),
            1,
            [f"--flagfile={tmp_path / 'flags'}"],
            tmp_path,
        )


def test_plan_takes_several_action_costs(tmp_path):
    wanted = Combinations(["pendulum"], ["sac"], ["0"], ["0.030", "0"])
    free, dear = plan(wanted, 1, ["--size=small"], tmp_path)
    assert (free.name, dear.name) == ("pendulum-cost0-sac-s0", "pendulum-cost0.03-sac-s0")
    assert "--action_cost=0.03" in dear.arguments


def test_a_suite_that_learns_nothing_says_so_once(tmp_path, capsys):
    wanted = Combinations(["pendulum", "ball_in_cup"], ["mbpo", "upper_bound"], ["0"])
    plan(wanted, 1, ["--num_steps=3000"], tmp_path)
    assert capsys.readouterr().err.splitlines() == [
        "warning: num_steps is 3000 and config.warmup_steps 5000, so nothing is learned; use a "
        "larger --num_steps or a smaller --config.warmup_steps"
    ]


def test_fewer_steps_than_an_interrupted_run_has_saved_are_refused(tmp_path):
    combinations = Combinations(["pendulum"], ["sac"], ["0"])
    (one,) = plan(combinations, 1, ("--num_steps=20000",), tmp_path)
    saved = one.path / "checkpoints" / "15000"
    saved.mkdir(parents=True)
    (saved / "checksums.json").touch()
    (one,) = plan(combinations, 1, ("--num_steps=20000",), tmp_path)
    assert not one.is_done()
    with pytest.raises(ValueError, match="num_steps is 10000, but 15000 steps are done in"):
        plan(combinations, 1, ("--num_steps=10000",), tmp_path)


@pytest.mark.parametrize("steps", [None, [], "many", True])
def test_a_summary_whose_steps_are_no_number_is_named(tmp_path, steps):
    (tmp_path / "summary.json").write_text(json.dumps({"steps": steps}))
    with pytest.raises(ValueError, match=r"summary.json: steps is .*, which is no whole number"):
        planning.done_steps(tmp_path)


def test_each_seed_of_a_plan_has_to_be_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(suite.queue, "work", lambda *_: pytest.fail("it has begun"))
    arguments = ["--tasks=pendulum", "--methods=sac", "--seeds=0,2147483648"]
    assert suite.main(["suite", *arguments, f"--workdir={tmp_path}"]) == 2
    assert "seed=2147483648" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--memory", "--init_from=run", "--workdir=x", "--preset=sac"])
def test_what_makes_no_sense_in_a_suite_is_named(tmp_path, flag):
    wanted = Combinations(["pendulum"], ["sac"], ["0"])
    with pytest.raises(ValueError, match="is what a suite sets for each run; use"):
        planning.plan(wanted, 1, [flag], tmp_path)
