"""One container of a pod: image, ports, environment, mounts and resources."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from dray.api.document import Document
from dray.api.field_errors import (
    FieldErrors,
    Path,
    duplicate,
    forbidden,
    invalid,
    not_found,
    not_supported,
    required,
)
from dray.api.names import NO_ADDRESS, dns1123_label, port_name
from dray.api.validation.core_v1_environment import validate_env, validate_env_from
from dray.api.validation.core_v1_resources import validate_resource_requirements
from dray.api.validation.core_v1_volume import validate_descending, validate_no_backsteps
from dray.lib.ip_addresses import parse_address

_PORT_MAX: Final = 65535
_BAD_PORT: Final = "must be between 1 and 65535, inclusive"
_PROTOCOLS: Final = ("SCTP", "TCP", "UDP")
_MESSAGE_POLICIES: Final = ("File", "FallbackToLogsOnError")
_PULL_POLICIES: Final = ("Always", "IfNotPresent", "Never")


def validate_container(
    container: Document, volumes: Collection[str], path: Path, *, restart_policy: str
) -> FieldErrors:
    """Validate the fields that all kinds of containers share; `volumes` are the names of the pod's volumes."""
    errors = _validate_identity(container, path)
    if ports := container.get("ports"):
        errors += _validate_ports(ports, path.child("ports"))
    if env := container.get("env"):
        errors += validate_env(env, path.child("env"))
    if sources := container.get("envFrom"):
        errors += validate_env_from(sources, path.child("envFrom"))
    mounts, devices = container.get("volumeMounts") or (), container.get("volumeDevices") or ()
    if mounts or devices:
        errors += _validate_mounts(container, volumes, path.child("volumeMounts"))
        errors += _validate_devices(devices, mounts, volumes, path.child("volumeDevices"))
    policy = container.get("imagePullPolicy") or ""
    if policy not in _PULL_POLICIES:
        errors.append(_unsupported(policy, _PULL_POLICIES, path.child("imagePullPolicy")))
    if resources := container.get("resources"):
        errors += validate_resource_requirements(resources, path.child("resources"))
    if resizes := container.get("resizePolicy"):
        errors += _validate_resize(resizes, restart_policy, path.child("resizePolicy"))
    if context := container.get("securityContext"):
        errors += validate_security_context(context, path.child("securityContext"))
    return errors


def _unsupported(value: str, supported: Sequence[str], path: Path) -> Any:
    return not_supported(path, value, supported) if value else required(path)


def _validate_identity(container: Document, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    name = container.get("name") or ""
    if not name:
        errors.append(required(path.child("name")))
    else:
        errors += [invalid(path.child("name"), name, problem) for problem in dns1123_label(name)]
    if not container.get("image"):
        errors.append(required(path.child("image")))
    policy = container.get("terminationMessagePolicy") or ""
    if policy not in _MESSAGE_POLICIES:
        errors.append(_unsupported(policy, _MESSAGE_POLICIES, path.child("terminationMessagePolicy")))
    return errors


# --- Ports.


def _validate_ports(ports: Sequence[Document], path: Path) -> FieldErrors:
    errors: FieldErrors = []
    seen: set[str] = set()
    for i, port in enumerate(ports):
        at = path.index(i)
        name = port.get("name") or ""
        if name:
            problems = port_name(name)
            errors += [invalid(at.child("name"), name, problem) for problem in problems]
            if not problems and name in seen:
                errors.append(duplicate(at.child("name"), name))
            seen.add(name)
        errors += _validate_port(port, at)
    return errors


def _validate_port(port: Document, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    number, host = port.get("containerPort") or 0, port.get("hostPort") or 0
    if number == 0:
        errors.append(required(path.child("containerPort")))
    elif not 0 < number <= _PORT_MAX:
        errors.append(invalid(path.child("containerPort"), number, _BAD_PORT))
    if not 0 <= host <= _PORT_MAX:
        errors.append(invalid(path.child("hostPort"), host, _BAD_PORT))
    protocol = port.get("protocol") or ""
    if protocol not in _PROTOCOLS:
        errors.append(_unsupported(protocol, _PROTOCOLS, path.child("protocol")))
    return errors


def validate_ip(text: str, path: Path) -> FieldErrors:
    """Validate an IPv4 or IPv6 address."""
    if parse_address(text) is None:
        return [invalid(path, text, NO_ADDRESS)]
    return []


def host_port_conflicts(containers: Sequence[Document], path: Path) -> FieldErrors:
    """Return the errors of host ports that are used more than once."""
    errors: FieldErrors = []
    taken: set[str] = set()
    for i, container in enumerate(containers):
        for j, port in enumerate(container.get("ports") or ()):
            if not port.get("hostPort"):
                continue
            claim = f"{port.get('protocol', '')}/{port.get('hostIP', '')}/{port['hostPort']}"
            if claim in taken:
                errors.append(duplicate(path.index(i).child("ports").index(j).child("hostPort"), claim))
            taken.add(claim)
    return errors


# --- Mounts.


def _validate_mounts(container: Document, volumes: Collection[str], path: Path) -> FieldErrors:
    errors: FieldErrors = []
    mounts, devices = container.get("volumeMounts") or (), container.get("volumeDevices") or ()
    is_privileged = bool((container.get("securityContext") or {}).get("privileged"))
    device_names = {device.get("name") for device in devices}
    device_paths = {device.get("devicePath") for device in devices}
    seen: set[str] = set()
    for i, mount in enumerate(mounts):
        at = path.index(i)
        name, target = mount.get("name") or "", mount.get("mountPath") or ""
        if not name:
            errors.append(required(at.child("name")))
        if name not in volumes:
            errors.append(not_found(at.child("name"), name))
        if not target:
            errors.append(required(at.child("mountPath")))
        if target in seen:
            errors.append(invalid(at.child("mountPath"), target, "must be unique"))
        seen.add(target)
        if name in device_names:
            errors.append(invalid(at.child("name"), name, "must not already exist in volumeDevices"))
        if target in device_paths:
            errors.append(invalid(at.child("mountPath"), target, "must not already exist as a path in volumeDevices"))
        errors += _validate_mount_options(mount, at, path, is_privileged=is_privileged)
    return errors


def _validate_mount_options(mount: Document, path: Path, parent: Path, *, is_privileged: bool) -> FieldErrors:
    errors: FieldErrors = []
    sub_path, expression = mount.get("subPath") or "", mount.get("subPathExpr") or ""
    if sub_path:
        errors += validate_descending(sub_path, parent.child("subPath"))
    if expression:
        if sub_path:
            text = "subPathExpr and subPath are mutually exclusive"
            errors.append(invalid(path.child("subPathExpr"), expression, text))
        errors += validate_descending(expression, parent.child("subPathExpr"))
    propagation = mount.get("mountPropagation")
    if propagation is not None and propagation not in _PROPAGATIONS:
        errors.append(not_supported(parent.child("mountPropagation"), propagation, _PROPAGATIONS))
    if propagation == "Bidirectional" and not is_privileged:
        text = "Bidirectional mount propagation is available only to privileged containers"
        errors.append(forbidden(parent.child("mountPropagation"), text))
    return errors


_PROPAGATIONS: Final = ("Bidirectional", "HostToContainer", "None")


def _validate_devices(
    devices: Sequence[Document], mounts: Sequence[Document], volumes: Collection[str], path: Path
) -> FieldErrors:
    errors: FieldErrors = []
    mount_names = {mount.get("name") for mount in mounts}
    names: set[str] = set()
    targets: set[str] = set()
    for i, device in enumerate(devices):
        at = path.index(i)
        name, target = device.get("name") or "", device.get("devicePath") or ""
        if not name:
            errors.append(required(at.child("name")))
        if name in names:
            errors.append(invalid(at.child("name"), name, "must be unique"))
        if name not in volumes:
            errors.append(not_found(at.child("name"), name))
        if not target:
            errors.append(required(at.child("devicePath")))
        if target in targets:
            errors.append(invalid(at.child("devicePath"), target, "must be unique"))
        if validate_no_backsteps(target, at):
            errors.append(invalid(at.child("devicePath"), target, "can not contain backsteps ('..')"))
        if name in mount_names:
            errors.append(invalid(at.child("name"), name, "must not already exist in volumeMounts"))
        names.add(name)
        targets.add(target)
    return errors


# --- Resizing and security.

_RESIZABLE: Final = ("cpu", "memory")
_RESIZE_POLICIES: Final = ("NotRequired", "RestartContainer")


def _validate_resize(policies: Sequence[Document], restart_policy: str, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    seen: set[str] = set()
    for i, policy in enumerate(policies):
        resource, restart = policy.get("resourceName") or "", policy.get("restartPolicy") or ""
        if resource in seen:
            errors.append(duplicate(path.index(i), resource))
        seen.add(resource)
        if resource not in _RESIZABLE:
            errors.append(_unsupported(resource, _RESIZABLE, path))
        if restart not in _RESIZE_POLICIES:
            errors.append(_unsupported(restart, _RESIZE_POLICIES, path))
        if restart_policy == "Never" and restart != "NotRequired":
            errors.append(invalid(path, restart, "must be 'NotRequired' when `restartPolicy` is 'Never'"))
    return errors


_ID_MAX: Final = 2**31 - 1
_BAD_ID: Final = f"must be between 0 and {_ID_MAX}, inclusive"
_SECCOMP_TYPES: Final = ("Localhost", "RuntimeDefault", "Unconfined")


def validate_security_context(context: Document, path: Path) -> FieldErrors:
    """Validate a container's security context."""
    errors = validate_identities(context, path)
    errors += validate_profiles(context, path)
    proc_mount = context.get("procMount")
    if proc_mount is not None and proc_mount not in ("Default", "Unmasked"):
        errors.append(not_supported(path.child("procMount"), proc_mount, ("Default", "Unmasked")))
    if context.get("allowPrivilegeEscalation") is False:
        if context.get("privileged"):
            text = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
            errors.append(invalid(path, context, text))
        if "CAP_SYS_ADMIN" in ((context.get("capabilities") or {}).get("add") or ()):
            text = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"
            errors.append(invalid(path, context, text))
    return errors


def validate_identities(context: Document, path: Path) -> FieldErrors:
    """Validate user and group ids."""
    return [
        invalid(path.child(field), context[field], _BAD_ID)
        for field in ("runAsUser", "runAsGroup", "fsGroup")
        if context.get(field) is not None and not 0 <= context[field] <= _ID_MAX
    ]


def validate_profiles(context: Document, path: Path) -> FieldErrors:
    """Validate seccomp and AppArmor profiles."""
    errors: FieldErrors = []
    for field, label in (("seccompProfile", "seccomp"), ("appArmorProfile", "AppArmor")):
        profile = context.get(field)
        if profile is None:
            continue
        kind, local = profile.get("type") or "", profile.get("localhostProfile")
        at = path.child(field)
        if not kind:
            errors.append(required(at.child("type"), f"type is required when {field} is set"))
        elif kind not in _SECCOMP_TYPES:
            errors.append(not_supported(at.child("type"), kind, _SECCOMP_TYPES))
        if kind == "Localhost" and not local:
            errors.append(required(at.child("localhostProfile"), f"must be set when {label} type is Localhost"))
        elif kind != "Localhost" and local is not None:
            errors.append(
                invalid(at.child("localhostProfile"), profile, f"can only be set when {label} type is Localhost")
            )
    return errors


# --- Probes and hooks.

_HANDLERS: Final = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
_PROBE_NUMBERS: Final = (
    "initialDelaySeconds",
    "timeoutSeconds",
    "periodSeconds",
    "successThreshold",
    "failureThreshold",
)


def validate_probes_and_hooks(container: Document, grace_period: int | None, path: Path) -> FieldErrors:
    """Validate the probes and lifecycle hooks of a long-running container."""
    errors: FieldErrors = []
    lifecycle = container.get("lifecycle")
    if lifecycle:
        for hook in ("postStart", "preStop"):
            if lifecycle.get(hook) is not None:
                errors += _validate_handler(lifecycle[hook], grace_period, path.child("lifecycle", hook))
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        probe = container.get(name)
        if probe is not None:
            errors += _validate_probe(name, probe, grace_period, path.child(name))
    return errors


def _validate_probe(name: str, probe: Document, grace_period: int | None, path: Path) -> FieldErrors:
    errors = _validate_handler(probe, grace_period, path)
    errors += [
        invalid(path.child(field), probe[field], "must be greater than or equal to 0")
        for field in _PROBE_NUMBERS
        if (probe.get(field) or 0) < 0
    ]
    seconds = probe.get("terminationGracePeriodSeconds")
    if name == "readinessProbe":
        if seconds is not None:
            text = "must not be set for readinessProbes"
            errors.append(invalid(path.child("terminationGracePeriodSeconds"), seconds, text))
        return errors
    if seconds is not None and seconds <= 0:
        errors.append(invalid(path.child("terminationGracePeriodSeconds"), seconds, "must be greater than 0"))
    if probe.get("successThreshold") != 1:
        errors.append(invalid(path.child("successThreshold"), probe.get("successThreshold") or 0, "must be 1"))
    return errors


def _validate_handler(handler: Document, grace_period: int | None, path: Path) -> FieldErrors:
    chosen = [name for name in _HANDLERS if handler.get(name) is not None]
    if not chosen:
        return [required(path, "must specify a handler type")]
    errors = [forbidden(path.child(name), "may not specify more than 1 handler type") for name in chosen[1:]]
    name = chosen[0]
    action, at = handler[name], path.child(name)
    if name == "exec":
        if not action.get("command"):
            errors.append(required(at.child("command")))
    elif name == "httpGet":
        errors += _validate_http_get(action, at)
    elif name == "sleep":
        seconds = action.get("seconds") or 0
        if grace_period is not None and not 0 <= seconds <= grace_period:
            text = f"must be non-negative and less than terminationGracePeriodSeconds ({grace_period})"
            errors.append(invalid(at, seconds, text))
    else:
        errors += validate_port_number_or_name(action.get("port"), at.child("port"))
    return errors


def _validate_http_get(action: Document, path: Path) -> FieldErrors:
    errors = [] if action.get("path") else [required(path.child("path"))]
    errors += validate_port_number_or_name(action.get("port"), path.child("port"))
    if action.get("scheme") not in ("HTTP", "HTTPS"):
        errors.append(not_supported(path.child("scheme"), action.get("scheme") or "", ("HTTP", "HTTPS")))
    return errors


def validate_port_number_or_name(port: Any, path: Path) -> FieldErrors:
    """Validate a port of the container, by number or by name."""
    if isinstance(port, str):
        return [invalid(path, port, problem) for problem in port_name(port)]
    number = port or 0
    return [] if 0 < number <= _PORT_MAX else [invalid(path, number, _BAD_PORT)]
