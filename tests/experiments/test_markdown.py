"""Markdown tables."""

import pytest

from experiments import markdown


def test_a_table():
    head = markdown.head(["task", "return"], texts=("task",))
    assert head == "| task | return |\n| --- | ---: |"
    assert markdown.row(["a|b", 1.5]) == r"| a\|b | 1.5 |"


def test_words_of_a_column_that_there_is_not():
    with pytest.raises(ValueError, match="tsk"):
        markdown.head(["task"], texts=("tsk",))
