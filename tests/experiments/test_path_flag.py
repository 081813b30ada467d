"""Flags that are paths."""

import pathlib

import pytest
from absl import flags

from experiments import online, path_flag


def test_the_home_directory_may_be_a_tilde(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    options = flags.FlagValues()
    path_flag.define(options, "file", None, "to read")
    path_flag.define(options, "folder", "~/runs", "to write to")
    options(["program"])
    assert (options.file, options.folder) == (None, "/home/ada/runs")
    options(["program", "--file=~/a~b", "--folder", "off"])
    assert (options.file, options.folder) == ("/home/ada/a~b", "off")


def test_programs_take_it_in_every_path(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    options = online.make_flags()
    names = ("workdir", "init_from", "profile", "config_file", "compilation_cache")
    options(["online", *(f"--{name}=~/x" for name in names)])
    assert {getattr(options, name) for name in names} == {str(pathlib.Path("/home/ada/x"))}


def test_an_output_folder_with_the_name_of_a_picture_is_refused():
    options = flags.FlagValues()
    path_flag.define_output(options, None, "folder to write to")
    options(["program", "--output=figures.d/0.5"])
    assert options.output == "figures.d/0.5"
    with pytest.raises(
        flags.IllegalFlagValueError, match=r"output=curve.PNG: it names a folder.*leave \.PNG out"
    ):
        options(["program", "--output=curve.PNG"])
