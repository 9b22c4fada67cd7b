"""Words of the small tools become checked arguments or one line about what is wrong."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import pytest
from pydantic import Field

from speedtronic.core.arguments import ToolArguments, parse_arguments, run_tool
from speedtronic.core.errors import CheckpointError, ConfigError

USAGE = "tool RUN [tokens=200]"


class Words(ToolArguments):
    run: str
    tokens: Annotated[int, Field(ge=1)] = 200
    temperature: float = 0.8


def parse(*argv: str) -> Words:
    return parse_arguments(Words, argv, positional="run", usage=USAGE)


def test_the_word_without_a_key_is_the_positional_one() -> None:
    assert parse("tokens=5", "some/run") == Words(run="some/run", tokens=5)


def test_a_path_with_an_equals_sign_is_positional() -> None:
    assert parse("a/lr=1").run == "a/lr=1"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("R", "tokns=5"), "tokns: unknown key, got '5'; did you mean 'tokens'?"),
        (("R", "tokens=0"), "tokens: must be at least 1, got '0'; the default is 200"),
        (("R", "tokens=many"), "tokens: must be an integer, got 'many'; the default is 200"),
        (("R", "tokens=1", "tokens=2"), "tokens must be given once, got '1' and '2'"),
        (("R", "S"), "run must be given once, got 'R' and 'S'"),
        ((), f"run must be given; usage: {USAGE}"),
    ],
)
def test_a_wrong_word_gives_one_line(argv: Sequence[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(*argv)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("error", "status"), [(ConfigError("wrong"), 2), (CheckpointError("wrong"), 1)]
)
def test_an_error_is_one_line_on_stderr_and_its_own_exit_status(
    error: Exception,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_argv: Sequence[str]) -> int:
        raise error

    monkeypatch.setattr(sys, "argv", ["tool", "R"])
    assert run_tool(fail, usage=USAGE) == status
    assert capsys.readouterr().err == "error: wrong\n"


def test_help_prints_the_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tool", "--help"])
    assert run_tool(lambda _argv: 1, usage=USAGE) == 0
    assert capsys.readouterr().out == f"usage: {USAGE}\n"
