"""Levels, versions and modes of Pod Security, and where they come from: namespace labels and the configuration."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from dray.api.document import Document
from dray.api.field_errors import FieldError, Path, invalid

LABEL_PREFIX: Final = "pod-security.kubernetes.io/"
# Newer than every version that can be named.
LATEST: Final = 1 << 63
_VERSION: Final = re.compile(r"v1\.(0|[1-9][0-9]{0,17})")
_LABELS: Final = Path("metadata").child("labels")
_API_VERSIONS: Final = tuple(f"pod-security.admission.config.k8s.io/{name}" for name in ("v1", "v1beta1", "v1alpha1"))
_Value = TypeVar("_Value")


class Level(enum.StrEnum):
    """How much a policy forbids, in rising order."""

    PRIVILEGED = "privileged"
    BASELINE = "baseline"
    RESTRICTED = "restricted"

    def is_stricter_than(self, other: Level) -> bool:
        """Return whether this level forbids more."""
        return _STRICTNESS[self] > _STRICTNESS[other]


_STRICTNESS: Final = {level: rank for rank, level in enumerate(Level)}


class LevelVersion(msgspec.Struct, frozen=True):
    """A level as of a Kubernetes version: the minor version of 1.x, or `LATEST`."""

    level: Level = Level.PRIVILEGED
    minor: int = LATEST

    def __str__(self) -> str:
        version = "latest" if self.minor == LATEST else f"v1.{self.minor}"
        return f"{self.level.value}:{version}"


class Policy(msgspec.Struct, frozen=True):
    """What a namespace enforces on Pods, and what it audits and warns about."""

    enforce: LevelVersion = LevelVersion()
    audit: LevelVersion = LevelVersion()
    warn: LevelVersion = LevelVersion()

    @property
    def is_privileged(self) -> bool:
        """Whether nothing is forbidden in any mode."""
        return self.enforce.level == self.audit.level == self.warn.level == Level.PRIVILEGED

    def describe(self, labels: Mapping[str, str]) -> str:
        """Return the modes that the labels set to more than privileged, such as `enforce=baseline:latest`."""
        modes = {"enforce": self.enforce, "audit": self.audit, "warn": self.warn}
        return ", ".join(
            f"{mode}={value}"
            for mode, value in modes.items()
            if value.level is not Level.PRIVILEGED and not labels.keys().isdisjoint(_mode_labels(mode))
        )


class PodSecurityConfiguration(msgspec.Struct, frozen=True):
    """The policy of namespaces without labels, and who and what is exempt from all policies."""

    defaults: Policy = Policy()
    usernames: frozenset[str] = frozenset()
    runtime_classes: frozenset[str] = frozenset()
    namespaces: frozenset[str] = frozenset()


class ConfigurationError(ValueError):
    """A PodSecurityConfiguration that cannot be used."""


def _mode_labels(mode: str) -> tuple[str, str]:
    return f"{LABEL_PREFIX}{mode}", f"{LABEL_PREFIX}{mode}-version"


def parse_level(text: str) -> Level:
    """Return the level; raises ValueError."""
    try:
        return Level(text)
    except ValueError:
        raise ValueError(f"must be one of {', '.join(Level)}") from None


def parse_version(text: str) -> int:
    """Return the minor version, or `LATEST`; raises ValueError."""
    if text == "latest":
        return LATEST
    match = _VERSION.fullmatch(text)
    if match is None:
        raise ValueError('must be "latest" or "v1.x"')
    return int(match[1])


def _has_policy(labels: Mapping[str, str]) -> bool:
    return any(key.startswith(LABEL_PREFIX) for key in labels)


def policy_of(labels: Mapping[str, str], defaults: Policy) -> tuple[Policy, Sequence[FieldError]]:
    """Return the policy of a namespace, and what is wrong with its labels.

    There is always a policy: a wrong level is enforced as restricted, and neither audited nor warned about.
    """
    if not _has_policy(labels):
        return defaults, ()
    errors: list[FieldError] = []
    enforce = _mode_policy(labels, "enforce", defaults.enforce, Level.RESTRICTED, errors)
    audit = _mode_policy(labels, "audit", defaults.audit, Level.PRIVILEGED, errors)
    warn = _mode_policy(labels, "warn", defaults.warn, Level.PRIVILEGED, errors)
    enforce_label, _ = _mode_labels("enforce")
    warn_label, warn_version_label = _mode_labels("warn")
    # Without a warn label, workloads are warned about what their Pods will be refused for.
    if enforce_label in labels and warn_label not in labels and enforce.level.is_stricter_than(warn.level):
        warn = LevelVersion(enforce.level, warn.minor if warn_version_label in labels else enforce.minor)
    return Policy(enforce, audit, warn), errors


def _mode_policy(
    labels: Mapping[str, str], mode: str, default: LevelVersion, fallback: Level, errors: list[FieldError]
) -> LevelVersion:
    level_label, version_label = _mode_labels(mode)
    level = _parsed(labels, level_label, parse_level, (default.level, fallback), errors)
    minor = _parsed(labels, version_label, parse_version, (default.minor, LATEST), errors)
    return LevelVersion(level, minor)


def _parsed(
    labels: Mapping[str, str],
    label: str,
    parse: Callable[[str], _Value],
    defaults: tuple[_Value, _Value],
    errors: list[FieldError],
) -> _Value:
    """Return the label's value; the first default if it is missing, the second if it is wrong."""
    text = labels.get(label)
    if text is None:
        return defaults[0]
    try:
        return parse(text)
    except ValueError as error:
        errors.append(invalid(_LABELS.key(label), text, str(error)))
        return defaults[1]


def parse_configuration(document: Any) -> PodSecurityConfiguration:
    """Return the configuration in a PodSecurityConfiguration document."""
    _check_fields(document, "", ("apiVersion", "kind", "defaults", "exemptions"))
    if document.get("kind") != "PodSecurityConfiguration" or document.get("apiVersion") not in _API_VERSIONS:
        raise ConfigurationError(f"must be a PodSecurityConfiguration of {_API_VERSIONS[0]}")
    defaults = document.get("defaults") or {}
    _check_fields(
        defaults, "defaults", [name for mode in Policy.__struct_fields__ for name in (mode, f"{mode}-version")]
    )
    exemptions = document.get("exemptions") or {}
    _check_fields(exemptions, "exemptions", ("usernames", "runtimeClasses", "namespaces"))
    return PodSecurityConfiguration(
        Policy(*(_default_of(defaults, mode) for mode in Policy.__struct_fields__)),
        usernames=_names(exemptions, "usernames"),
        runtime_classes=_names(exemptions, "runtimeClasses"),
        namespaces=_names(exemptions, "namespaces"),
    )


def _default_of(defaults: Document, mode: str) -> LevelVersion:
    try:
        name = mode
        level = parse_level(defaults.get(name) or Level.PRIVILEGED.value)
        name = f"{mode}-version"
        return LevelVersion(level, parse_version(defaults.get(name) or "latest"))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"defaults.{name}: Invalid value: {defaults.get(name)!r}: {error}") from None


def _names(exemptions: Document, field: str) -> frozenset[str]:
    names = exemptions.get(field) or []
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise ConfigurationError(f"exemptions.{field}: must be a list of names")
    return frozenset(names)


def _check_fields(value: Any, path: str, known: Iterable[str]) -> None:
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path or 'configuration'}: must be a map")
    if unknown := sorted(str(name) for name in value.keys() - set(known)):
        raise ConfigurationError(f'unknown field "{f"{path}." if path else ""}{unknown[0]}"')
