"""Applies the controls of a level and version to a Pod."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Final

import msgspec

from dray.api.document import Document
from dray.api.pod_security import controls
from dray.api.pod_security.controls import Control, Subject, Violation
from dray.api.pod_security.policy import Level, LevelVersion


class _Revision(msgspec.Struct, frozen=True):
    """A control from one minor version on; a later revision of the same name replaces it."""

    name: str
    since: int
    control: Control
    # The baseline control that a restricted one includes.
    replaces: str = ""


# In the order of messages: by name, baseline before restricted.
_BASELINE: Final = (
    _Revision("appArmorProfile", 0, controls.app_armor_profile),
    _Revision("capabilities_baseline", 0, controls.capabilities_baseline),
    _Revision("hostNamespaces", 0, controls.host_namespaces),
    _Revision("hostPathVolumes", 0, controls.host_path_volumes),
    _Revision("hostPorts", 0, controls.host_ports),
    _Revision("hostProbesAndHostLifecycle", 34, controls.host_probes),
    _Revision("privileged", 0, controls.privileged),
    _Revision("procMount", 0, controls.proc_mount),
    _Revision("procMount", 35, partial(controls.unless_user_namespace, controls.proc_mount)),
    _Revision("seLinuxOptions", 0, controls.selinux_options),
    _Revision("seLinuxOptions", 31, controls.selinux_options_1_31),
    _Revision("seccompProfile_baseline", 0, controls.seccomp_annotations),
    _Revision("seccompProfile_baseline", 19, controls.seccomp_baseline),
    _Revision("sysctls", 0, controls.sysctls),
    _Revision("sysctls", 27, controls.sysctls_1_27),
    _Revision("sysctls", 29, controls.sysctls_1_29),
    _Revision("sysctls", 32, controls.sysctls_1_32),
    _Revision("windowsHostProcess", 0, controls.windows_host_process),
)
_ESCALATION: Final = controls.allow_privilege_escalation
_CAPABILITIES: Final = controls.capabilities_restricted
_SECCOMP: Final = controls.seccomp_restricted
_RESTRICTED: Final = (
    _Revision("allowPrivilegeEscalation", 8, _ESCALATION),
    _Revision("allowPrivilegeEscalation", 25, partial(controls.unless_windows, _ESCALATION)),
    _Revision("capabilities_restricted", 22, _CAPABILITIES, "capabilities_baseline"),
    _Revision("capabilities_restricted", 25, partial(controls.unless_windows, _CAPABILITIES), "capabilities_baseline"),
    _Revision("procMount_restricted", 35, controls.proc_mount, "procMount"),
    _Revision("restrictedVolumes", 0, controls.restricted_volumes, "hostPathVolumes"),
    _Revision("runAsNonRoot", 0, controls.run_as_non_root),
    _Revision("runAsNonRoot", 35, partial(controls.unless_user_namespace, controls.run_as_non_root)),
    _Revision("runAsUser", 23, controls.run_as_user),
    _Revision("runAsUser", 35, partial(controls.unless_user_namespace, controls.run_as_user)),
    _Revision("seccompProfile_restricted", 19, _SECCOMP, "seccompProfile_baseline"),
    _Revision("seccompProfile_restricted", 25, partial(controls.unless_windows, _SECCOMP), "seccompProfile_baseline"),
)
# No revision is newer, so all later versions are the same.
_NEWEST: Final = max(revision.since for revision in (*_BASELINE, *_RESTRICTED))
_SELECTIONS_MAX: Final = 2 * (_NEWEST + 1)


def evaluate(policy: LevelVersion, metadata: Document, spec: Document) -> Sequence[Violation]:
    """Return what a Pod, or the Pods of a template, violate."""
    if policy.level is Level.PRIVILEGED:
        return ()
    subject = Subject(metadata, spec)
    selected = _controls(policy.level, min(policy.minor, _NEWEST))
    return [violation for control in selected if (violation := control(subject)) is not None]


@lru_cache(maxsize=_SELECTIONS_MAX)
def _controls(level: Level, minor: int) -> tuple[Control, ...]:
    selected = _as_of(_BASELINE, minor)
    if level is Level.RESTRICTED:
        restricted = _as_of(_RESTRICTED, minor)
        for revision in restricted.values():
            selected.pop(revision.replaces, None)
        selected |= restricted
    return tuple(revision.control for revision in selected.values())


def _as_of(revisions: Sequence[_Revision], minor: int) -> dict[str, _Revision]:
    return {revision.name: revision for revision in revisions if revision.since <= minor}


def summary(violations: Sequence[Violation]) -> str:
    """Return the reasons alone, which many Pods may have in common."""
    return ", ".join(violation.reason for violation in violations)


def details(violations: Sequence[Violation]) -> str:
    """Return the reasons with their causes."""
    return ", ".join(map(str, violations))
