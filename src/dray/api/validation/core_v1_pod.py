"""Pods and pod templates: creation, the mutable fields of a Pod, and its status."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

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
    too_many,
)
from dray.api.names import dns1123_label, dns1123_subdomain, underscored_subdomain
from dray.api.validation.core_v1_container import (
    host_port_conflicts,
    validate_container,
    validate_identities,
    validate_ip,
    validate_probes_and_hooks,
    validate_profiles,
)
from dray.api.validation.core_v1_pod_diff import spec_diff
from dray.api.validation.core_v1_pod_gated import undo_gated_changes, validate_gated_changes
from dray.api.validation.core_v1_pod_level_resources import validate_pod_level_resources
from dray.api.validation.core_v1_resources import validate_resource_list
from dray.api.validation.core_v1_scheduling import (
    validate_affinity,
    validate_only_added_tolerations,
    validate_only_deleted_gates,
    validate_scheduling_gates,
    validate_tolerations,
    validate_topology_spread,
)
from dray.api.validation.core_v1_sysctls import validate_sysctls
from dray.api.validation.core_v1_volume import validate_volumes
from dray.api.validation.meta_v1 import (
    validate_annotations,
    validate_immutable,
    validate_label_name,
    validate_labels,
)
from dray.api.validation.resource_pod import (
    validate_extended_resource_claim_status,
    validate_node_allocatable_claim_statuses,
    validate_pod_claims_of_containers,
    validate_pod_resource_claims,
    validate_resource_claim_statuses,
)
from dray.api.validation.scheduling_v1beta1 import validate_union
from dray.api.validation.valid_specs import ValidSpecs

SPEC: Final = Path("spec")
STATUS: Final = Path("status")
_INT32_MAX: Final = 2**31 - 1
_RESTART_POLICIES: Final = ("Always", "OnFailure", "Never")
_DNS_POLICIES: Final = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_PREEMPTION_POLICIES: Final = ("PreemptLowerPriority", "Never")
_NAMESERVERS_MAX: Final = 3
_SEARCHES_MAX: Final = 32
_SEARCHES_LENGTH_MAX: Final = 2048
_RESTART_ACTIONS: Final = ("Restart", "RestartAllContainers")
_RESTART_RULES_MAX: Final = 20
_EXIT_CODE_OPERATORS: Final = ("In", "NotIn")
_EXIT_CODES_MAX: Final = 255
_SIDECARS_ONLY: Final = "may not be set for init containers without restartPolicy=Always"
_NOT_EPHEMERAL: Final = "cannot be set for an Ephemeral Container"
# Ephemeral containers get no resources of their own (XR-10).
_EPHEMERAL_FORBIDDEN: Final = (
    "ports",
    "resources",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
    "resizePolicy",
    "restartPolicy",
)


_VALID_SPECS: Final = ValidSpecs()


def validate_pod_create(pod: Document, valid: ValidSpecs = _VALID_SPECS) -> FieldErrors:
    """Return the validation errors of a new Pod, except its metadata."""
    spec, metadata = pod.get("spec") or {}, pod.get("metadata") or {}
    # The claims that are generated for a Pod have its name in theirs, so that they are validated for each.
    claims = validate_pod_resource_claims(spec, SPEC, metadata=metadata)
    if not claims:
        return valid.errors(spec, lambda: _validate_new_spec(spec, metadata))
    return _validate_new_spec(spec, metadata)


def _validate_new_spec(spec: Document, metadata: Document) -> FieldErrors:
    errors = validate_pod_spec(spec, SPEC, metadata=metadata)
    for kind in ("containers", "initContainers"):
        for i, container in enumerate(spec.get(kind) or ()):
            image = container.get("image") or ""
            if image != image.strip():
                text = "must not have leading or trailing whitespace"
                errors.append(invalid(SPEC.child(kind).index(i).child("image"), image, text))
    if spec.get("ephemeralContainers"):
        errors.append(forbidden(SPEC.child("ephemeralContainers"), "cannot be set on create"))
    if spec.get("nodeName") and spec.get("schedulingGates"):
        text = "cannot be set until all schedulingGates have been cleared"
        errors.append(forbidden(SPEC.child("nodeName"), text))
    return errors


def validate_template(template: Document | None, path: Path) -> FieldErrors:
    """Validate a workload's pod template."""
    if template is None:
        return [required(path)]
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    errors = validate_labels(metadata.get("labels") or {}, path.child("labels"))
    errors += validate_annotations(metadata.get("annotations") or {}, path.child("annotations"))
    errors += validate_pod_spec(spec, path.child("spec"))
    if spec.get("ephemeralContainers"):
        text = "ephemeral containers not allowed in pod template"
        errors.append(forbidden(path.child("spec", "ephemeralContainers"), text))
    return errors


def validate_pod_spec(spec: Document, path: Path, *, metadata: Document | None = None) -> FieldErrors:
    """Validate the spec of a Pod, whose metadata is given, or of a template."""
    errors: FieldErrors = []
    volumes = spec.get("volumes") or ()
    if volumes:
        errors += validate_volumes(volumes, path.child("volumes"))
    errors += validate_pod_resource_claims(spec, path, metadata=metadata)
    errors += _validate_all_containers(spec, {volume.get("name") for volume in volumes}, path)
    errors += validate_pod_claims_of_containers(spec, path)
    errors += validate_pod_level_resources(spec, path.child("resources"))
    if spec.get("hostNetwork"):
        errors += _validate_host_ports(spec, path, is_pod=metadata is not None)
    errors += _validate_policies(spec, path)
    errors += _validate_placement(spec, path)
    errors += _validate_names(spec, path)
    return errors + _validate_optional(spec, path)


# --- Containers.


def _validate_all_containers(spec: Document, volumes: Collection[str], path: Path) -> FieldErrors:
    containers = spec.get("containers") or ()
    grace_period, restart = spec.get("terminationGracePeriodSeconds"), spec.get("restartPolicy") or ""
    errors = _validate_containers(containers, volumes, grace_period, restart, path.child("containers"))
    if init := spec.get("initContainers"):
        errors += _validate_init_containers(init, spec, volumes, path.child("initContainers"))
    if ephemeral := spec.get("ephemeralContainers"):
        errors += validate_ephemeral_containers(ephemeral, spec, volumes, path.child("ephemeralContainers"))
    return errors


def _validate_containers(
    containers: Sequence[Document], volumes: Collection[str], grace_period: int | None, restart: str, path: Path
) -> FieldErrors:
    if not containers:
        return [required(path)]
    errors: FieldErrors = []
    seen: set[str] = set()
    for i, container in enumerate(containers):
        at = path.index(i)
        errors += validate_container(container, volumes, at, restart_policy=restart)
        name = container.get("name") or ""
        if name in seen:
            errors.append(duplicate(at.child("name"), name))
        seen.add(name)
        errors += validate_probes_and_hooks(container, grace_period, at)
        errors += _validate_container_restarts(container, at)
    return errors + host_port_conflicts(containers, path)


def _validate_container_restarts(container: Document, path: Path) -> FieldErrors:
    policy, rules = container.get("restartPolicy"), container.get("restartPolicyRules") or ()
    errors: FieldErrors = []
    if policy is None and rules:
        errors.append(required(path.child("restartPolicy"), "must specify restartPolicy when restart rules are used"))
    elif policy is not None and policy not in _RESTART_POLICIES:
        errors.append(not_supported(path.child("restartPolicy"), policy, sorted(_RESTART_POLICIES)))
    path = path.child("restartPolicyRules")
    if len(rules) > _RESTART_RULES_MAX:
        errors.append(too_many(path, len(rules), _RESTART_RULES_MAX))
    for i, rule in enumerate(rules):
        action, codes = rule.get("action") or "", rule.get("exitCodes")
        if action not in _RESTART_ACTIONS:
            errors.append(not_supported(path.index(i).child("action"), action, _RESTART_ACTIONS))
        at = path.index(i).child("exitCodes")
        if codes is None:
            errors.append(required(at, "must be specified"))
            continue
        if codes.get("operator") not in _EXIT_CODE_OPERATORS:
            errors.append(not_supported(at.child("operator"), codes.get("operator") or "", _EXIT_CODE_OPERATORS))
        if len(codes.get("values") or ()) > _EXIT_CODES_MAX:
            errors.append(too_many(at.child("values"), len(codes["values"]), _EXIT_CODES_MAX))
    return errors


def _validate_init_containers(
    containers: Sequence[Document], spec: Document, volumes: Collection[str], path: Path
) -> FieldErrors:
    errors: FieldErrors = []
    seen = {container.get("name") or "" for container in spec.get("containers") or ()}
    for i, container in enumerate(containers):
        at = path.index(i)
        errors += validate_container(container, volumes, at, restart_policy=spec.get("restartPolicy") or "")
        errors += _validate_init_lifetime(container, spec.get("terminationGracePeriodSeconds"), at)
        name = container.get("name") or ""
        if name in seen:
            errors.append(duplicate(at.child("name"), name))
        elif name:
            seen.add(name)
        # Init containers run one after the other, so only ports within one can conflict.
        errors += host_port_conflicts((container,), path)
    return errors


def _validate_init_lifetime(container: Document, grace_period: int | None, path: Path) -> FieldErrors:
    policy = container.get("restartPolicy")
    errors = _validate_container_restarts(container, path)
    if policy == "Always":
        return errors + validate_probes_and_hooks(container, grace_period, path)
    errors += [
        forbidden(path.child(field), _SIDECARS_ONLY)
        for field in ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe")
        if container.get(field) is not None
    ]
    return errors


def validate_ephemeral_containers(
    containers: Sequence[Document], spec: Document, volumes: Collection[str], path: Path
) -> FieldErrors:
    """Validate the ephemeral containers of a running pod."""
    errors: FieldErrors = []
    others = {item.get("name") for kind in ("containers", "initContainers") for item in spec.get(kind) or ()}
    seen = set(others)
    for i, container in enumerate(containers):
        at = path.index(i)
        name, target = container.get("name") or "", container.get("targetContainerName") or ""
        errors += validate_container(container, volumes, at, restart_policy=spec.get("restartPolicy") or "")
        if name in seen:
            errors.append(duplicate(at.child("name"), name))
        seen.add(name)
        if target and target not in others:
            errors.append(not_found(at.child("targetContainerName"), target))
        errors += [forbidden(at.child(field), _NOT_EPHEMERAL) for field in _EPHEMERAL_FORBIDDEN if container.get(field)]
        for j, mount in enumerate(container.get("volumeMounts") or ()):
            errors += [
                forbidden(at.child("volumeMounts").index(j).child(field), _NOT_EPHEMERAL)
                for field in ("subPath", "subPathExpr")
                if mount.get(field)
            ]
    return errors


def _validate_host_ports(spec: Document, path: Path, *, is_pod: bool) -> FieldErrors:
    errors: FieldErrors = []
    for i, container in enumerate(spec.get("containers") or ()):
        for j, port in enumerate(container.get("ports") or ()):
            host = port.get("hostPort") or 0
            # A template's unset port is set when its Pod is created.
            if (is_pod or host) and host != (port.get("containerPort") or 0):
                at = path.child("containers").index(i).child("ports").index(j).child("hostPort")
                errors.append(invalid(at, host, "must match `containerPort` when `hostNetwork` is true"))
    return errors


# --- The rest of the spec.


def _validate_policies(spec: Document, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    if spec.get("terminationGracePeriodSeconds") is None:
        errors.append(required(path.child("terminationGracePeriodSeconds")))
    for field, supported in (("restartPolicy", _RESTART_POLICIES), ("dnsPolicy", _DNS_POLICIES)):
        value = spec.get(field) or ""
        if value not in supported:
            at = path.child(field)
            errors.append(not_supported(at, value, supported) if value else required(at))
    preemption = spec.get("preemptionPolicy")
    if preemption is not None and preemption not in _PREEMPTION_POLICIES:
        errors.append(not_supported(path.child("preemptionPolicy"), preemption, _PREEMPTION_POLICIES))
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= _INT32_MAX:
        text = f"must be between 1 and {_INT32_MAX}, inclusive"
        errors.append(invalid(path.child("activeDeadlineSeconds"), deadline, text))
    return errors


def _validate_placement(spec: Document, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    if selector := spec.get("nodeSelector"):
        errors += validate_labels(selector, path.child("nodeSelector"))
    if affinity := spec.get("affinity"):
        errors += validate_affinity(affinity, path.child("affinity"))
    if gates := spec.get("schedulingGates"):
        errors += validate_scheduling_gates(gates, path.child("schedulingGates"))
    if constraints := spec.get("topologySpreadConstraints"):
        errors += validate_topology_spread(constraints, path.child("topologySpreadConstraints"))
    if tolerations := spec.get("tolerations"):
        errors += validate_tolerations(tolerations, path.child("tolerations"))
    return errors


_SUBDOMAIN_FIELDS: Final = ("serviceAccountName", "nodeName", "priorityClassName", "runtimeClassName")


def _validate_names(spec: Document, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    for field in _SUBDOMAIN_FIELDS:
        if value := spec.get(field):
            errors += [invalid(path.child(field), value, problem) for problem in dns1123_subdomain(value)]
    for field in ("hostname", "subdomain"):
        if value := spec.get(field):
            errors += [invalid(path.child(field), value, problem) for problem in dns1123_label(value)]
    return errors


def _validate_host_aliases(aliases: Sequence[Document], path: Path) -> FieldErrors:
    errors: FieldErrors = []
    for i, alias in enumerate(aliases):
        errors += validate_ip(alias.get("ip") or "", path.index(i).child("ip"))
        names = path.index(i).child("hostnames")
        for j, name in enumerate(alias.get("hostnames") or ()):
            errors += [invalid(names.index(j), name, problem) for problem in dns1123_subdomain(name)]
    return errors


def _validate_optional(spec: Document, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    if context := spec.get("securityContext"):
        errors += validate_identities(context, path.child("securityContext"))
        errors += validate_profiles(context, path.child("securityContext"))
        errors += validate_sysctls(context.get("sysctls") or (), spec, path.child("securityContext", "sysctls"))
    if spec.get("hostUsers") is False:
        errors += [
            forbidden(path.child(shown), "when `pod.Spec.HostUsers` is false")
            for field, shown in (("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC"))
            if spec.get(field)
        ]
    if spec.get("dnsConfig") is not None or spec.get("dnsPolicy") == "None":
        errors += _validate_dns(spec.get("dnsConfig"), spec.get("dnsPolicy") or "", path.child("dnsConfig"))
    for i, gate in enumerate(spec.get("readinessGates") or ()):
        at = path.child("readinessGates").index(i).child("conditionType")
        errors += validate_label_name(gate.get("conditionType") or "", at)
    errors += _validate_host_aliases(spec.get("hostAliases") or (), path.child("hostAliases"))
    if overhead := spec.get("overhead"):
        errors += validate_resource_list(overhead, path.child("overhead"))
    os_name = (spec.get("os") or {}).get("name")
    if spec.get("os") is not None and os_name not in ("linux", "windows"):
        at = path.child("os", "name")
        errors.append(not_supported(at, os_name, ("linux", "windows")) if os_name else required(at))
    if (group := spec.get("schedulingGroup")) is not None:
        at = path.child("schedulingGroup")
        errors += validate_union(group, at, ("podGroupName",))
        if (name := group.get("podGroupName")) is not None:
            errors += [invalid(at.child("podGroupName"), name, problem) for problem in dns1123_subdomain(name)]
    return errors


def _validate_dns(config: Document | None, policy: str, path: Path) -> FieldErrors:
    if policy == "None":
        if config is None:
            return [required(path, "must provide `dnsConfig` when `dnsPolicy` is None")]
        if not config.get("nameservers"):
            text = "must provide at least one DNS nameserver when `dnsPolicy` is None"
            return [required(path.child("nameservers"), text)]
    if config is None:
        return []
    errors: FieldErrors = []
    servers: list[str] = config.get("nameservers") or []
    if len(servers) > _NAMESERVERS_MAX:
        text = f"must not have more than {_NAMESERVERS_MAX} nameservers"
        errors.append(invalid(path.child("nameservers"), servers, text))
    for i, server in enumerate(servers):
        errors += validate_ip(server, path.child("nameservers").index(i))
    errors += _validate_searches(config.get("searches") or [], path.child("searches"))
    for i, option in enumerate(config.get("options") or ()):
        if not option.get("name"):
            errors.append(required(path.child("options").index(i), "must not be empty"))
    return errors


def _validate_searches(searches: list[str], path: Path) -> FieldErrors:
    errors: FieldErrors = []
    if len(searches) > _SEARCHES_MAX:
        errors.append(invalid(path, searches, f"must not have more than {_SEARCHES_MAX} search paths"))
    if len(" ".join(searches).encode()) > _SEARCHES_LENGTH_MAX:
        text = f"must not have more than {_SEARCHES_LENGTH_MAX} characters (including spaces) in the search list"
        errors.append(invalid(path, searches, text))
    for i, search in enumerate(searches):
        if search != ".":
            domain = search.removesuffix(".")
            errors += [invalid(path.index(i), domain, text) for text in underscored_subdomain(domain)]
    return errors


# --- Updates.

_UPDATABLE: Final = ",".join(
    (
        "`spec.containers[*].image`",
        "`spec.initContainers[*].image`",
        "`spec.activeDeadlineSeconds`",
        "`spec.tolerations` (only additions to existing tolerations)",
        "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
    )
)


def validate_pod_update(new: Document, old: Document) -> FieldErrors:
    """Validate a changed Pod; only a few fields of its spec are mutable."""
    spec, previous = new.get("spec") or {}, old.get("spec") or {}
    if spec == previous:
        return []
    errors = validate_pod_spec(spec, SPEC, metadata=new.get("metadata") or {})
    for kind in ("containers", "initContainers"):
        if len(spec.get(kind) or ()) != len(previous.get(kind) or ()):
            return [*errors, forbidden(SPEC.child(kind), "pod updates may not add or remove containers")]
    deadline_errors = _validate_deadline_change(spec, previous)
    if deadline_errors:
        return errors + deadline_errors
    tolerations, gates = spec.get("tolerations") or (), spec.get("schedulingGates") or ()
    old_tolerations = previous.get("tolerations") or ()
    errors += validate_only_added_tolerations(tolerations, old_tolerations, SPEC.child("tolerations"))
    errors += validate_only_deleted_gates(gates, previous.get("schedulingGates") or (), SPEC.child("schedulingGates"))
    munged = _with_allowed_changes_undone(spec, previous)
    if previous.get("schedulingGates"):
        errors += validate_gated_changes(spec, previous)
        munged = undo_gated_changes(munged, previous)
    if munged != previous:
        text = f"pod updates may not change fields other than {_UPDATABLE}\n{spec_diff(munged, previous)}"
        errors.append(forbidden(SPEC, text))
    return errors


def _validate_deadline_change(new: Document, old: Document) -> FieldErrors:
    path = SPEC.child("activeDeadlineSeconds")
    value, previous = new.get("activeDeadlineSeconds"), old.get("activeDeadlineSeconds")
    if value is None:
        text = "must not update from a positive integer to nil value"
        return [] if previous is None else [invalid(path, None, text)]
    if not 0 <= value <= _INT32_MAX:
        return [invalid(path, value, f"must be between 0 and {_INT32_MAX}, inclusive")]
    if previous is not None and value > previous:
        return [invalid(path, value, "must be less than or equal to previous value")]
    return []


def _with_allowed_changes_undone(spec: Document, old: Document) -> Document:
    """Return the new spec with the mutable fields reset, so that only forbidden changes remain."""
    munged = dict(spec)
    for kind in ("containers", "initContainers"):
        if spec.get(kind):
            pairs = zip(spec[kind], old[kind], strict=True)
            munged[kind] = [{**container, "image": before.get("image")} for container, before in pairs]
    fields = ["activeDeadlineSeconds", "tolerations", "schedulingGates"]
    if (old.get("terminationGracePeriodSeconds") or 0) < 0 and spec.get("terminationGracePeriodSeconds") == 1:
        fields.append("terminationGracePeriodSeconds")
    for field in fields:
        munged.pop(field, None)
        if field in old:
            munged[field] = old[field]
    return munged


# --- Status.


def validate_pod_status_update(new: Document, old: Document) -> FieldErrors:
    """Validate a changed status of a Pod."""
    status, previous, spec = new.get("status") or {}, old.get("status") or {}, new.get("spec") or {}
    errors = _validate_addresses(status)
    if spec.get("restartPolicy") != "Always":
        path = STATUS.child("containerStatuses")
        errors += _validate_state_transitions(status, previous, spec.get("restartPolicy") or "", path)
    qos, old_qos = status.get("qosClass"), previous.get("qosClass")
    if old_qos and qos != old_qos:
        errors += validate_immutable(qos, old_qos, STATUS.child("qosClass"))
    nominated = status.get("nominatedNodeName")
    if nominated:
        path = STATUS.child("nominatedNodeName")
        errors += [invalid(path, nominated, problem) for problem in dns1123_subdomain(nominated)]
    errors += validate_resource_claim_statuses(status, spec, STATUS)
    errors += validate_extended_resource_claim_status(status, spec, STATUS)
    return errors + validate_node_allocatable_claim_statuses(status, spec, STATUS)


def _validate_state_transitions(new: Document, old: Document, restart: str, path: Path) -> FieldErrors:
    """Validate that a container that must not be restarted stays terminated."""
    before = {
        item.get("name"): (item.get("state") or {}).get("terminated") for item in old.get("containerStatuses") or ()
    }
    errors: FieldErrors = []
    for i, item in enumerate(new.get("containerStatuses") or ()):
        ended = before.get(item.get("name"))
        if ended is None or (restart == "OnFailure" and ended.get("exitCode")):
            continue
        if (item.get("state") or {}).get("terminated") is None:
            text = "may not be transitioned to non-terminated state"
            errors.append(forbidden(path.index(i).child("state"), text))
    return errors


def _validate_addresses(status: Document) -> FieldErrors:
    errors: FieldErrors = []
    for field in ("podIPs", "hostIPs"):
        items = status.get(field)
        if not items:
            continue
        addresses = [item.get("ip") or "" for item in items]
        for i, address in enumerate(addresses):
            errors += validate_ip(address, STATUS.child(field).index(i))
        errors += _validate_dual_stack(addresses, STATUS.child(field))
    hosts = status.get("hostIPs")
    if hosts and status.get("hostIP") != hosts[0].get("ip"):
        path = STATUS.child("hostIPs").index(0).child("ip")
        errors.append(invalid(path, hosts[0].get("ip"), "must be equal to `hostIP`"))
    return errors


def _validate_dual_stack(addresses: Sequence[str], path: Path) -> FieldErrors:
    families = [":" in address for address in addresses]
    if len(set(families)) == len(families):
        return []
    listed = [{"ip": address} for address in addresses]
    return [invalid(path, listed, "may specify no more than one IP for each IP family")]
