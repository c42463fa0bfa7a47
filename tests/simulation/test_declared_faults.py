"""`make simulate` fails if a fault never happens in a variant that declares it, however short the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.simulation import __main__ as command
from tests.simulation.faults import Faults
from tests.simulation.node_simulation import NodeSimulation
from tests.simulation.runs import VARIANTS

# A run of it takes a tenth of a second.
BRIEF = "node_crash"
SEED = 6  # An even one: without a power cut.
Variant = Callable[..., Any]


class WithoutPowerCuts(NodeSimulation):
    """Declares the faults of the other, but every crash is that of a process."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed - seed % 2, systematic=True)


class WithOneMore(NodeSimulation):
    """Declares a fault that its code never asks for."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, systematic=True)
        self.rates = Faults(**dict.fromkeys(self.rates.declared, 1e-9), never=0.5)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """The command disables logging in its process."""
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def variants(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def replace(**given: Variant) -> None:
        monkeypatch.setattr(command, "VARIANTS", {**VARIANTS, **given} if len(given) == 1 else given)
        for name, variant in given.items():
            monkeypatch.setitem(VARIANTS, name, variant)

    return replace


def simulate(*arguments: str) -> int:
    return command.main([*arguments, "--seed", str(SEED), "--jobs", "1"])


def test_a_variant_that_lacks_a_rare_fault_gets_further_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--runs=1", f"--variant={BRIEF}") == 0
    assert "2/1 runs" in capsys.readouterr().out


@pytest.mark.parametrize("seed", [1000, 20_000, 55_501_001])
def test_further_seeds_are_found_wherever_a_run_begins(seed: int) -> None:
    """These and the seeds beside them are for crashes at steps that their runs do not have."""
    assert command.main(["--runs=1", f"--variant={BRIEF}", "--seed", str(seed), "--jobs=1"]) == 0


@pytest.mark.parametrize(("variant", "fault"), [(WithoutPowerCuts, "power_cut"), (WithOneMore, "never")])
def test_a_fault_that_never_happens_fails_a_run_of_one_seed(
    variants: Callable[..., None], capsys: pytest.CaptureFixture[str], variant: Variant, fault: str
) -> None:
    variants(**{BRIEF: variant})
    assert simulate("--runs=1", f"--variant={BRIEF}") == 1
    assert f"never happened in {BRIEF}: {fault}" in capsys.readouterr().out


def test_a_fault_that_happens_only_in_another_variant_fails_the_run(
    variants: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    variants(**{BRIEF: partial(NodeSimulation, systematic=True), "broken": WithoutPowerCuts})
    assert simulate("--runs=4") == 1
    assert "never happened in broken: power_cut" in capsys.readouterr().out
