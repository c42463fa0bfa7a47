"""The page of feature gates, from `dray.api.features`."""

from __future__ import annotations

from tools.reference.markdown import page, table

from dray.api.features import ALIASES, GATES, Gate

INTRODUCTION = """`--feature-gates=A=true,B=false` switches features; `AllAlpha` and `AllBeta` switch whole stages,
and named gates win over them. Names and defaults are those of Kubernetes 1.36. Give all processes of a cluster the
same gates. A field of a feature that is off is dropped from what is written, unless the object has it already."""


def gates_page() -> str:
    """docs/reference/feature-gates.md."""
    rows = [(f"`{name}`", gate.stage or "GA", _default(gate), gate.description) for name, gate in sorted(GATES.items())]
    others = [f"* `{name}` is `{target}`." for name, target in sorted(ALIASES.items())]
    return page(
        "Feature gates",
        INTRODUCTION,
        table(("gate", "stage", "default", "what it switches"), rows),
        "## Other names",
        "\n".join(others),
    )


def _default(gate: Gate) -> str:
    return ("on" if gate.default else "off") + (", cannot be switched" if gate.locked else "")
