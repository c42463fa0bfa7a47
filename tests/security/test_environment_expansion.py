"""Variables of a container that refer to each other, and would expand without bound: a clear error of the container."""

from __future__ import annotations

import time

import msgspec
import pytest

from dray.api.types.core_v1 import Container, EnvVar, Pod
from dray.node.agent.pod.environment import (
    EXPANDED_BYTES_MAX,
    ConfigError,
    DownwardContext,
    Sources,
    environment,
    expand,
    expand_all,
)

AROUND = DownwardContext(node_name="n")


def variables(container: Container) -> dict[str, str]:
    pod = msgspec.convert({"metadata": {"name": "p"}, "spec": {}}, Pod)
    return environment(pod, container, Sources(), AROUND)


def test_variables_that_multiply_each_other_are_refused_in_time() -> None:
    env = [EnvVar(name="A0", value="x" * 10)]
    env += [EnvVar(name=f"A{i}", value=f"$(A{i - 1})" * 10) for i in range(1, 9)]
    started = time.process_time()
    with pytest.raises(ConfigError, match=f"references exceed {EXPANDED_BYTES_MAX} bytes"):
        variables(Container(name="c", env=tuple(env)))
    assert time.process_time() - started < 1


def test_variables_that_are_large_together_are_refused() -> None:
    env = [EnvVar(name="A", value="x" * 1_000_000)]
    env += [EnvVar(name=f"B{i}", value="$(A)") for i in range(3)]
    with pytest.raises(ConfigError, match="references exceed"):
        variables(Container(name="c", env=tuple(env)))


def test_command_that_repeats_a_variable_is_refused() -> None:
    with pytest.raises(ConfigError, match="references exceed"):
        expand("$(A)" * 1000, {"A": "x" * 100_000})
    with pytest.raises(ConfigError, match="references exceed"):
        expand_all(["$(A)"] * 30, {"A": "x" * 100_000})


def test_ordinary_references_are_expanded_in_order() -> None:
    env = (EnvVar(name="A", value="1"), EnvVar(name="B", value="$(A)$(A) $(C) $$(A)"), EnvVar(name="C", value="$(B)"))
    assert variables(Container(name="c", env=env)) == {"A": "1", "B": "11 $(C) $(A)", "C": "11 $(C) $(A)"}
    assert expand_all(["$(A)", "b"], {"A": "x" * 1000}) == ("x" * 1000, "b")
