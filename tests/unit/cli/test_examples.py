"""Each help page ends with examples, of which all flags exist."""

from __future__ import annotations

import contextlib
import shlex

import pytest
from tools.reference.completion import flags_of

from dray.cli.examples import EXAMPLES
from dray.cmd.main import PROCESSES, TOOLS, main

COMMANDS = sorted({*PROCESSES, *TOOLS})


def test_there_are_examples_of_all_commands_and_no_others() -> None:
    assert sorted(EXAMPLES) == COMMANDS


@pytest.mark.behaviour("TT-14")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_help_page_has_two_or_three_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("COLUMNS", "80")
        with contextlib.suppress(SystemExit):
            assert main([*command.split(), "--help"]) == 0
    page = capsys.readouterr().out
    assert 2 <= len(EXAMPLES[command]) <= 3
    for what, line in EXAMPLES[command]:
        assert f"  # {what}\n  {line}\n" in page


@pytest.mark.behaviour("TT-14")
@pytest.mark.parametrize(("command", "line"), [(name, line) for name, found in EXAMPLES.items() for _, line in found])
def test_the_flags_of_an_example_exist(command: str, line: str) -> None:
    parts = [part for part in line.replace("(", "|").replace(")", "|").split("|") if part.strip().startswith("dray ")]
    words = shlex.split(next(part for part in parts if part.strip().startswith(f"dray {command}")))
    used = {word.partition("=")[0] for word in words if word.startswith("-") and word != "-"}
    # Those of `dray node` may follow, and subcommands have flags of their own.
    known = {*flags_of(command), *(flags_of("node") if command == "join" else ())}
    known |= {"--print-join-command"} if command == "token" else set()
    assert used <= known
