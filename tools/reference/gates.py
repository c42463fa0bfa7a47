"""The page of feature gates, from `dray.api.features`."""

from __future__ import annotations

from tools.reference.markdown import page, table

from dray.api.gate_table import ALIASES, CURRENT, GATES, OLDEST, Gate, GateState, Release

INTRODUCTION = """`--feature-gates=A=true,B=false` enables or disables features. `AllAlpha` and `AllBeta` apply to all
gates of a stage; named gates take precedence. A locked gate can only be set to its default. A process does not start if
a gate is on and one that it requires is off. Names and defaults are those of Kubernetes 1.37, or of the release that
`--emulated-version` names; gates of Dray's own have no earlier releases. Use the same gates and release for all
processes of a cluster. Fields of a disabled feature are dropped on write, unless the stored object already has them."""


def gates_page() -> str:
    """Return docs/reference/feature-gates.md."""
    rows = [_row(name, gate) for name, gate in sorted(GATES.items())]
    others = [f"* `{name}` is an alias of `{target}`." for name, target in sorted(ALIASES.items())]
    return page(
        "Feature gates",
        INTRODUCTION,
        table(("gate", "stage", "default", "before", "requires", "feature"), rows),
        "## Aliases",
        "\n".join(others),
    )


def _row(name: str, gate: Gate) -> tuple[str, ...]:
    newest = gate.newest
    return f"`{name}`", newest.stage or "GA", _default(newest), _earlier(gate), _required(gate), gate.description


def _required(gate: Gate) -> str:
    # That one is on in any case.
    return ", ".join(f"`{name}`" for name in gate.requires if name != "DynamicResourceAllocation")


def _default(state: GateState) -> str:
    return ("on" if state.default else "off") + (", locked" if state.locked else "")


def _earlier(gate: Gate) -> str:
    """Return the defaults of the releases that can be emulated, where they differ from those of the next one."""
    found: list[str] = []
    after = _default(gate.newest)
    for minor in range(CURRENT.minor - 1, OLDEST.minor - 1, -1):
        state = gate.at(Release(CURRENT.major, minor))
        default = "none" if state is None else _default(state)
        if default != after:
            found.append(f"{CURRENT.major}.{minor}: {default}")
        after = default
    return "; ".join(found)
