"""The controls of the Pod Security Standards. Each returns why a Pod violates it, or None."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from dray.api.document import Document
from dray.api.field_errors import quote

_CONTAINER_FIELDS: Final = ("initContainers", "containers", "ephemeralContainers")
_APPARMOR_PREFIX: Final = "container.apparmor.security.beta.kubernetes.io/"
_SECCOMP_POD: Final = "seccomp.security.alpha.kubernetes.io/pod"
_SECCOMP_CONTAINER: Final = "container.seccomp.security.alpha.kubernetes.io/"
_CONFINED: Final = frozenset({"RuntimeDefault", "Localhost"})
_DEFAULT_CAPABILITIES: Final = frozenset(
    [
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ]
)
_SELINUX_TYPES: Final = frozenset({"", "container_t", "container_init_t", "container_kvm_t"})
SELINUX_TYPES_1_31: Final = _SELINUX_TYPES | {"container_engine_t"}
_SYSCTLS: Final = frozenset(
    {
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.ping_group_range",
        "net.ipv4.ip_unprivileged_port_start",
    }
)
SYSCTLS_1_27: Final = _SYSCTLS | {"net.ipv4.ip_local_reserved_ports"}
SYSCTLS_1_29: Final = SYSCTLS_1_27 | {
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
}
SYSCTLS_1_32: Final = SYSCTLS_1_29 | {"net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"}
_ALLOWED_VOLUMES: Final = frozenset(
    ["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"]
)
# Others, which are newer than the control, are called "unknown".
_RESTRICTED_VOLUMES: Final = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "gitRepo",
    "nfs",
    "iscsi",
    "glusterfs",
    "rbd",
    "flexVolume",
    "cinder",
    "cephfs",
    "flocker",
    "fc",
    "azureFile",
    "vsphereVolume",
    "quobyte",
    "azureDisk",
    "photonPersistentDisk",
    "portworxVolume",
    "scaleIO",
    "storageos",
]


class Violation(msgspec.Struct, frozen=True):
    """A control that a Pod violates: in short, and which fields of which containers are the cause."""

    reason: str
    detail: str

    def __str__(self) -> str:
        return f"{self.reason} ({self.detail})" if self.detail else self.reason


class Subject:
    """A Pod or a Pod template: what the controls look at."""

    __slots__ = ("annotations", "containers", "security", "spec")

    def __init__(self, metadata: Document, spec: Document) -> None:
        self.annotations: Mapping[str, str] = metadata.get("annotations") or {}
        self.spec = spec
        self.security: Document = spec.get("securityContext") or {}
        # Names and containers, init containers first.
        self.containers: list[tuple[str, Document]] = [
            (container.get("name") or "", container)
            for field in _CONTAINER_FIELDS
            for container in spec.get(field) or ()
        ]

    @property
    def has_user_namespace(self) -> bool:
        """Whether root in the containers is an unprivileged user on the node."""
        return self.spec.get("hostUsers") is False

    @property
    def is_windows(self) -> bool:
        """Whether the Pod says that it runs on Windows, where controls of Linux do not apply."""
        return (self.spec.get("os") or {}).get("name") == "windows"

    def contexts(self) -> Iterator[tuple[str, Document]]:
        """Return the names and security contexts of the containers."""
        for name, container in self.containers:
            yield name, container.get("securityContext") or {}


Control: TypeAlias = Callable[[Subject], Violation | None]


def _quoted(values: Iterable[str]) -> str:
    return ", ".join(map(quote, values))


def _plural(word: str, values: Sequence[Any] | set[str]) -> str:
    return word if len(values) == 1 else f"{word}s"


def _named(names: Sequence[str], word: str = "container") -> str:
    return f"{_plural(word, names)} {_quoted(names)}"


def _setters(names: Sequence[str], *, pod: bool) -> str:
    """Return who sets a field: the Pod, containers or both; empty if neither does."""
    return " and ".join([*(["pod"] if pod else []), *([_named(names)] if names else [])])


def _unconfined(subject: Subject, field: str) -> tuple[str, set[str]]:
    """Return who sets a profile of a type that does not confine, and the types."""
    values: set[str] = set()

    def is_bad(context: Document) -> bool:
        profile = context.get(field)
        if profile is None or profile.get("type") in _CONFINED:
            return False
        values.add(profile.get("type") or "")
        return True

    pod = is_bad(subject.security)
    return _setters([name for name, context in subject.contexts() if is_bad(context)], pod=pod), values


def _use(names: Sequence[str]) -> str:
    return "uses" if len(names) == 1 else "use"


def app_armor_profile(subject: Subject) -> Violation | None:
    """Forbid profiles other than the runtime's default and those of the node."""
    setters, values = _unconfined(subject, "appArmorProfile")
    annotations = sorted(
        f"{key}={quote(value)}"
        for key, value in subject.annotations.items()
        if key.startswith(_APPARMOR_PREFIX)
        and value not in ("", "runtime/default")
        and not value.startswith("localhost/")
    )
    if annotations:
        setters = " and ".join(filter(None, (setters, _plural("annotation", annotations))))
    if not setters:
        return None
    listed = [*sorted(values), *annotations]
    return Violation(
        _plural("forbidden AppArmor profile", listed),
        f"{setters} must not set AppArmor profile type to {_quoted(listed)}",
    )


def capabilities_baseline(subject: Subject) -> Violation | None:
    """Forbid capabilities beyond the default set."""
    names, added = _containers_adding(subject, _DEFAULT_CAPABILITIES)
    if not names:
        return None
    detail = f"{_named(names)} must not include {_quoted(added)} in securityContext.capabilities.add"
    return Violation("non-default capabilities", detail)


def _containers_adding(subject: Subject, allowed: frozenset[str]) -> tuple[list[str], list[str]]:
    """Return the containers that add capabilities which are not allowed, and those capabilities."""
    names, forbidden = [], set()
    for name, context in subject.contexts():
        added = set((context.get("capabilities") or {}).get("add") or ()) - allowed
        if added:
            names.append(name)
            forbidden |= added
    return names, sorted(forbidden)


def host_namespaces(subject: Subject) -> Violation | None:
    """Forbid the namespaces of the node."""
    shared = [field for field in ("hostIPC", "hostNetwork", "hostPID") if subject.spec.get(field)]
    return Violation("host namespaces", ", ".join(shared)) if shared else None


def host_path_volumes(subject: Subject) -> Violation | None:
    """Forbid directories of the node."""
    names = [
        volume.get("name") or "" for volume in subject.spec.get("volumes") or () if volume.get("hostPath") is not None
    ]
    return Violation("hostPath volumes", _named(names, "volume")) if names else None


def host_ports(subject: Subject) -> Violation | None:
    """Forbid ports of the node."""
    names, ports = [], set()
    for name, container in subject.containers:
        used = {str(port["hostPort"]) for port in container.get("ports") or () if port.get("hostPort")}
        if used:
            names.append(name)
            ports |= used
    if not names:
        return None
    return Violation(
        "hostPort", f"{_named(names)} {_use(names)} {_plural('hostPort', ports)} {', '.join(sorted(ports))}"
    )


def host_probes(subject: Subject) -> Violation | None:
    """Forbid other hosts in probes and lifecycle handlers, which the node connects to."""
    names, hosts = set(), set()
    for name, container in subject.containers:
        lifecycle = container.get("lifecycle") or {}
        handlers = [container.get(field) for field in ("livenessProbe", "readinessProbe", "startupProbe")]
        handlers += [lifecycle.get(field) for field in ("postStart", "preStop")]
        used = {
            host
            for handler in handlers
            for action in ("httpGet", "tcpSocket")
            if (host := ((handler or {}).get(action) or {}).get("host"))
        }
        if used:
            names.add(name)
            hosts |= used
    if not names:
        return None
    listed = sorted(names)
    what = _plural("probe or lifecycle host", hosts)
    return Violation("probe or lifecycle host", f"{_named(listed)} {_use(listed)} {what} {_quoted(sorted(hosts))}")


def privileged(subject: Subject) -> Violation | None:
    """Forbid privileged containers."""
    names = [name for name, context in subject.contexts() if context.get("privileged")]
    return Violation("privileged", f"{_named(names)} must not set securityContext.privileged=true") if names else None


def proc_mount(subject: Subject) -> Violation | None:
    """Require the default masks of /proc."""
    unusual = [
        (name, context["procMount"])
        for name, context in subject.contexts()
        if context.get("procMount") not in (None, "Default")
    ]
    if not unusual:
        return None
    names, types = [name for name, _ in unusual], sorted({kind for _, kind in unusual})
    return Violation("procMount", f"{_named(names)} must not set securityContext.procMount to {_quoted(types)}")


def unless_user_namespace(control: Control, subject: Subject) -> Violation | None:
    """Apply a control to Pods without a user namespace."""
    return None if subject.has_user_namespace else control(subject)


def unless_windows(control: Control, subject: Subject) -> Violation | None:
    """Apply a control to Pods that are not declared to run on Windows."""
    return None if subject.is_windows else control(subject)


def selinux_options(subject: Subject, types: frozenset[str] = _SELINUX_TYPES) -> Violation | None:
    """Forbid SELinux users and roles, and types that are not for containers."""
    bad_types: set[str] = set()
    set_fields: set[str] = set()

    def is_bad(context: Document) -> bool:
        options = context.get("seLinuxOptions") or {}
        kind, fields = options.get("type") or "", {field for field in ("user", "role") if options.get(field)}
        set_fields.update(fields)
        if kind not in types:
            bad_types.add(kind)
        return bool(fields) or kind not in types

    pod = is_bad(subject.security)
    setters = _setters([name for name, context in subject.contexts() if is_bad(context)], pod=pod)
    if not setters:
        return None
    data = [f"{_plural('type', bad_types)} {_quoted(sorted(bad_types))}"] if bad_types else []
    data += [f"{field} may not be set" for field in ("user", "role") if field in set_fields]
    return Violation("seLinuxOptions", f"{setters} set forbidden securityContext.seLinuxOptions: {'; '.join(data)}")


def seccomp_annotations(subject: Subject) -> Violation | None:
    """Forbid annotations for profiles other than the runtime's default and those of the node."""
    keys = [_SECCOMP_POD, *(f"{_SECCOMP_CONTAINER}{name}" for name, _ in subject.containers)]
    values = {key: subject.annotations[key] for key in keys if key in subject.annotations}
    forbidden = sorted(
        f"{key}={quote(value)}"
        for key, value in values.items()
        if value not in ("runtime/default", "docker/default") and not value.startswith("localhost/")
    )
    if not forbidden:
        return None
    return Violation("seccompProfile", f"forbidden {_plural('annotation', forbidden)} {', '.join(forbidden)}")


def seccomp_baseline(subject: Subject) -> Violation | None:
    """Forbid the profile Unconfined."""
    setters, values = _unconfined(subject, "seccompProfile")
    if not setters:
        return None
    listed = _quoted(sorted(values))
    return Violation("seccompProfile", f"{setters} must not set securityContext.seccompProfile.type to {listed}")


def seccomp_restricted(subject: Subject) -> Violation | None:
    """Require a profile."""
    if violation := seccomp_baseline(subject):
        return violation
    if subject.security.get("seccompProfile") is not None:
        return None
    names = [name for name, context in subject.contexts() if context.get("seccompProfile") is None]
    if not names:
        return None
    wanted = 'must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
    return Violation("seccompProfile", f"pod or {_named(names)} {wanted}")


def sysctls(subject: Subject, allowed: frozenset[str] = _SYSCTLS) -> Violation | None:
    """Forbid sysctls that reach beyond the Pod."""
    names = [item.get("name") or "" for item in subject.security.get("sysctls") or ()]
    forbidden = [name for name in names if name not in allowed]
    return Violation("forbidden sysctls", ", ".join(forbidden)) if forbidden else None


def windows_host_process(subject: Subject) -> Violation | None:
    """Forbid containers that are processes of a Windows node."""

    def is_bad(context: Document) -> bool:
        return bool((context.get("windowsOptions") or {}).get("hostProcess"))

    setters = _setters([name for name, context in subject.contexts() if is_bad(context)], pod=is_bad(subject.security))
    if not setters:
        return None
    return Violation("hostProcess", f"{setters} must not set securityContext.windowsOptions.hostProcess=true")


def allow_privilege_escalation(subject: Subject) -> Violation | None:
    """Require that processes cannot gain privileges."""
    names = [name for name, context in subject.contexts() if context.get("allowPrivilegeEscalation") is not False]
    if not names:
        return None
    detail = f"{_named(names)} must set securityContext.allowPrivilegeEscalation=false"
    return Violation("allowPrivilegeEscalation != false", detail)


def capabilities_restricted(subject: Subject) -> Violation | None:
    """Require that all capabilities are dropped; NET_BIND_SERVICE may be added."""
    keeping = [
        name
        for name, context in subject.contexts()
        if "ALL" not in ((context.get("capabilities") or {}).get("drop") or ())
    ]
    adding, added = _containers_adding(subject, frozenset({"NET_BIND_SERVICE"}))
    details = [f'{_named(keeping)} must set securityContext.capabilities.drop=["ALL"]'] if keeping else []
    if adding:
        details.append(f"{_named(adding)} must not include {_quoted(added)} in securityContext.capabilities.add")
    return Violation("unrestricted capabilities", "; ".join(details)) if details else None


def restricted_volumes(subject: Subject) -> Violation | None:
    """Forbid volumes other than those of the cluster's own objects and of storage drivers."""
    names, kinds = [], set()
    for volume in subject.spec.get("volumes") or ():
        sources = {field for field, source in volume.items() if field != "name" and source is not None}
        if sources & _ALLOWED_VOLUMES:
            continue
        names.append(volume.get("name") or "")
        kinds.add(next((kind for kind in _RESTRICTED_VOLUMES if kind in sources), "unknown"))
    if not names:
        return None
    what = _plural("restricted volume type", kinds)
    return Violation(
        "restricted volume types", f"{_named(names, 'volume')} {_use(names)} {what} {_quoted(sorted(kinds))}"
    )


def run_as_non_root(subject: Subject) -> Violation | None:
    """Require users other than root."""
    of_pod = subject.security.get("runAsNonRoot")
    as_root = [name for name, context in subject.contexts() if context.get("runAsNonRoot") is False]
    if setters := _setters(as_root, pod=of_pod is False):
        return Violation("runAsNonRoot != true", f"{setters} must not set securityContext.runAsNonRoot=false")
    unset = [name for name, context in subject.contexts() if context.get("runAsNonRoot") is None]
    if of_pod or not unset:
        return None
    return Violation("runAsNonRoot != true", f"pod or {_named(unset)} must set securityContext.runAsNonRoot=true")


def run_as_user(subject: Subject) -> Violation | None:
    """Forbid user 0."""
    names = [name for name, context in subject.contexts() if context.get("runAsUser") == 0]
    setters = _setters(names, pod=subject.security.get("runAsUser") == 0)
    return Violation("runAsUser=0", f"{setters} must not set runAsUser=0") if setters else None


selinux_options_1_31: Final[Control] = partial(selinux_options, types=SELINUX_TYPES_1_31)
sysctls_1_27: Final[Control] = partial(sysctls, allowed=SYSCTLS_1_27)
sysctls_1_29: Final[Control] = partial(sysctls, allowed=SYSCTLS_1_29)
sysctls_1_32: Final[Control] = partial(sysctls, allowed=SYSCTLS_1_32)
