"""Feature gates as a release of Kubernetes has them, and the parsers of `--feature-gates` and `--emulated-version`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from dray.api.gate_table import ALIASES, CURRENT, GATES, OLDEST, GateState, Release, Stage

# The release of Kubernetes whose API, defaults and messages these are.
KUBERNETES_RELEASE: Final = f"v{CURRENT}.0"
# The component whose version and gates these are, in flags that name several.
_COMPONENT: Final = "kube"


class FeatureGateError(ValueError):
    """Invalid value of `--feature-gates`."""


class EmulatedVersionError(ValueError):
    """Invalid value of `--emulated-version`."""


@dataclass(frozen=True, slots=True)
class FeatureGates:
    """The enabled gates; immutable."""

    overrides: Mapping[str, bool] = field(default_factory=dict)
    # The release whose defaults and locks apply, and whose API is served.
    release: Release = CURRENT
    # The names of all gates that are off.
    disabled: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        states = {name: gate.at(self.release) for name, gate in GATES.items()}
        defaults = {name: state is not None and state.default for name, state in states.items()}
        disabled = frozenset(name for name, on in (defaults | dict(self.overrides)).items() if not on)
        object.__setattr__(self, "disabled", disabled)

    def enabled(self, name: str) -> bool:
        """Report whether the gate is enabled; the gate must exist."""
        assert name in GATES
        return name not in self.disabled

    def with_overrides(self, overrides: Mapping[str, bool]) -> FeatureGates:
        """Return the gates of the same release with some that are set otherwise."""
        return FeatureGates({**self.overrides, **overrides}, self.release)

    def without(self, names: Iterable[str]) -> FeatureGates:
        """Return the gates with some that are off, and with them those that require them."""
        off = set(names)
        while more := {name for name, gate in GATES.items() if not off.isdisjoint(gate.requires)} - off:
            off |= more
        return self.with_overrides(dict.fromkeys(off, False))

    @classmethod
    def parse(cls, text: str, release: Release = CURRENT) -> FeatureGates:
        """Parse `A=true,B=false`, as the release has the gates."""
        return RequestedGates.parse(text).at(release)

    def check_dependencies(self) -> None:
        """Raise an error if a gate is on while one that it requires is off."""
        for name, gate in GATES.items():
            missing = [other for other in gate.requires if not self.enabled(other)]
            if missing and self.enabled(name):
                raise FeatureGateError(
                    f"{name} is enabled, but depends on features that are disabled: [{' '.join(missing)}]"
                )


@dataclass(frozen=True, slots=True)
class RequestedGates:
    """What `--feature-gates` sets; `AllAlpha` and `AllBeta` set whole stages, and named gates override them."""

    named: Mapping[str, bool] = field(default_factory=dict)
    stages: Mapping[Stage, bool] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> RequestedGates:
        """Parse `A=true,B=false`; raise `FeatureGateError` for what is no gate or no value."""
        named: dict[str, bool] = {}
        stages: dict[Stage, bool] = {}
        for item in filter(None, (part.strip() for part in text.split(","))):
            name, value = _parse_item(item)
            if name in _STAGES:
                stages[_STAGES[name]] = value
                continue
            name = ALIASES.get(name, name)
            if name not in GATES:
                raise FeatureGateError(f"unrecognized feature gate: {name}")
            named[name] = value
        return cls(named, stages)

    def at(self, release: Release) -> FeatureGates:
        """Return the gates in a release; raise `FeatureGateError` for one that it does not let be set so."""
        for name, value in self.named.items():
            _check_settable(name, GATES[name].at(release), release, value=value)
        by_stage = {
            name: self.stages[state.stage]
            for name, gate in GATES.items()
            if (state := gate.at(release)) is not None and state.stage in self.stages
        }
        gates = FeatureGates({**by_stage, **self.named}, release)
        gates.check_dependencies()
        return gates


def _check_settable(name: str, state: GateState | None, release: Release, *, value: bool) -> None:
    attempt = f"cannot set feature gate {name} to {str(value).lower()}"
    if state is None:
        raise FeatureGateError(
            f"{attempt}, feature is PreAlpha at emulated version {release}, "
            f"min compatibility version {min_compatibility(release)}"
        )
    if state.locked and value != state.default:
        raise FeatureGateError(f"{attempt}, feature is locked to {str(state.default).lower()}")


_STAGES: Final = {"AllAlpha": Stage.ALPHA, "AllBeta": Stage.BETA}
# The values that Go's strconv.ParseBool accepts.
_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})


def parse_bool(text: str) -> bool:
    """Parse a boolean as Go's strconv.ParseBool does; raise ValueError with its message."""
    if text not in _TRUE | _FALSE:
        raise ValueError(f'strconv.ParseBool: parsing "{text}": invalid syntax')
    return text in _TRUE


def _parse_item(item: str) -> tuple[str, bool]:
    name, separator, value = item.partition("=")
    component, colon, rest = name.rpartition(":")
    if colon:
        _check_component(component.strip())
        name = rest
    if not separator:
        raise FeatureGateError(f"missing bool value for {name}")
    value = value.strip()
    try:
        return name.strip(), parse_bool(value)
    except ValueError as error:
        raise FeatureGateError(f"invalid value of {name}={value}, err: {error}") from error


def _check_component(name: str) -> None:
    if name != _COMPONENT:
        raise FeatureGateError(f"component not registered: {name}")


# --- The emulated version. ---

_VERSION: Final = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", re.ASCII)


def min_compatibility(release: Release) -> Release:
    """Return the oldest release that may be in the cluster beside components that emulate this one."""
    return Release(release.major, release.minor - 1)


def parse_emulated_version(text: str) -> Release:
    """Parse `1.35` or `kube=1.35`; raise `EmulatedVersionError` for anything but a release that can be emulated."""
    found: list[str] = []
    for item in text.split(","):
        component, separator, version = item.partition("=")
        if separator and component.strip() != _COMPONENT:
            raise EmulatedVersionError(f"component not registered: {component.strip()}")
        found.append((version if separator else item).strip())
    if len(found) > 1:
        first, second = (f"{_COMPONENT}={version}" for version in found[:2])
        raise EmulatedVersionError(f"duplicate version flag, {second} and {first}")
    return _release(found[0])


def _release(text: str) -> Release:
    match = _VERSION.fullmatch(text)
    if match is None:
        raise EmulatedVersionError(f'could not parse "{text}" as version')
    if int(match[3] or 0):
        raise EmulatedVersionError(f"patch version not allowed, got: {_COMPONENT}={text}")
    release = Release(int(match[1]), int(match[2]))
    if not OLDEST <= release <= CURRENT:
        raise EmulatedVersionError(f"emulation version {release} is not between [{OLDEST}, {CURRENT}]")
    return release
