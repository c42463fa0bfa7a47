"""The page of feature gates, from `dray.api.features`."""

from __future__ import annotations

from tools.reference.markdown import page, table

from dray.api.features import ALIASES, GATES, Gate

INTRODUCTION = """`--feature-gates=A=true,B=false` enables or disables features. `AllAlpha` and `AllBeta` apply to all
gates of a stage; named gates take precedence. A locked gate can only be set to its default. A process does not start if
a gate is on and one that it requires is off. Names and defaults are those of Kubernetes 1.37. Use the same gates for
all processes of a cluster. Fields of a disabled feature are dropped on write, unless the stored object already has
them."""


def gates_page() -> str:
    """Return docs/reference/feature-gates.md."""
    rows = [
        (f"`{name}`", gate.stage or "GA", _default(gate), _required(gate), gate.description)
        for name, gate in sorted(GATES.items())
    ]
    others = [f"* `{name}` is an alias of `{target}`." for name, target in sorted(ALIASES.items())]
    return page(
        "Feature gates",
        INTRODUCTION,
        table(("gate", "stage", "default", "requires", "feature"), rows),
        "## Aliases",
        "\n".join(others),
    )


def _required(gate: Gate) -> str:
    # That one is on in any case.
    return ", ".join(f"`{name}`" for name in gate.requires if name != "DynamicResourceAllocation")


def _default(gate: Gate) -> str:
    return ("on" if gate.default else "off") + (", locked" if gate.locked else "")
