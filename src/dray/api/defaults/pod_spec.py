"""Defaults of a pod spec, in Pods and in pod templates, and canonical quantities.

Runs for every Pod that is created, so it visits only the fields that are present.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from dray.api.document import Document
from dray.api.quantity import Quantity, QuantityError
from dray.lib.processor_time import ticking

_MODE: Final = 0o644
_TOKEN_EXPIRATION_SECONDS: Final = 3600
_GRACE_PERIOD_SECONDS: Final = 30
_CONTAINER_KINDS: Final = ("containers", "initContainers", "ephemeralContainers")
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
# The members of a lifecycle that are handlers; stopSignal is text.
_HOOKS: Final = ("postStart", "preStop")
_CACHE_SIZE: Final = 4096


def default_pod_spec(spec: Document) -> None:
    """Default the fields that Pods and pod templates share."""
    if not spec.get("dnsPolicy"):
        spec["dnsPolicy"] = "ClusterFirst"
    # Of a feature that Kubernetes has switched off, and that no component of Dray has.
    spec.pop("evictionResponders", None)
    if not spec.get("restartPolicy"):
        spec["restartPolicy"] = "Always"
    if spec.get("terminationGracePeriodSeconds") is None:
        spec["terminationGracePeriodSeconds"] = _GRACE_PERIOD_SECONDS
    if spec.get("securityContext") is None:
        spec["securityContext"] = {}
    if not spec.get("schedulerName"):
        spec["schedulerName"] = "default-scheduler"
    _mirror_service_account(spec)
    for kind in _CONTAINER_KINDS:
        for container in ticking(spec.get(kind) or ()):
            _default_container(container)
    for volume in spec.get("volumes") or ():
        _default_volume(volume)
    canonicalize_quantities(spec.get("overhead"))
    if resources := spec.get("resources"):
        _default_resources(resources)


def default_pod(spec: Document) -> None:
    """Default the fields that only Pods have: requests from limits, service links, host ports."""
    default_pod_spec(spec)
    if spec.get("enableServiceLinks") is None:
        spec["enableServiceLinks"] = True
    host_network = spec.get("hostNetwork")
    for container in ticking((*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))):
        if limits := container["resources"].get("limits"):
            _requests_from_limits(container["resources"], limits)
        if host_network:
            for port in container.get("ports") or ():
                if not port.get("hostPort"):
                    port["hostPort"] = port.get("containerPort", 0)


def _mirror_service_account(spec: Document) -> None:
    # `serviceAccount` is the deprecated name of the same field; both are always set.
    name = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if name:
        spec["serviceAccountName"] = spec["serviceAccount"] = name


def _requests_from_limits(resources: Document, limits: Document) -> None:
    requests = resources.get("requests")
    if requests is None:
        resources["requests"] = dict(limits)
        return
    for name, quantity in limits.items():
        requests.setdefault(name, quantity)


def _default_container(container: Document) -> None:
    resources = container.get("resources")
    if resources is None:
        container["resources"] = {}
    elif resources:
        _default_resources(resources)
    if not container.get("terminationMessagePath"):
        container["terminationMessagePath"] = "/dev/termination-log"
    if not container.get("terminationMessagePolicy"):
        container["terminationMessagePolicy"] = "File"
    if not container.get("imagePullPolicy"):
        container["imagePullPolicy"] = _pull_policy(container.get("image") or "")
    for port in container.get("ports") or ():
        if not port.get("protocol"):
            port["protocol"] = "TCP"
    for variable in container.get("env") or ():
        _default_env_source(variable.get("valueFrom"))
    _default_handlers(container)


def _default_handlers(container: Document) -> None:
    for name in _PROBES:
        if (probe := container.get(name)) is not None:
            _default_probe(probe)
    if lifecycle := container.get("lifecycle"):
        for name in _HOOKS:
            _default_http_get((lifecycle.get(name) or {}).get("httpGet"))


def _default_resources(resources: Document) -> None:
    if limits := resources.get("limits"):
        canonicalize_quantities(limits)
    if requests := resources.get("requests"):
        canonicalize_quantities(requests)


@lru_cache(maxsize=_CACHE_SIZE)
def _pull_policy(image: str) -> str:
    """Return `Always` for the tag `latest`, explicit or implicit, else `IfNotPresent`."""
    if "@" in image:
        return "IfNotPresent"
    _, colon, tag = image.rpartition("/")[2].partition(":")
    return "Always" if not colon or tag == "latest" else "IfNotPresent"


def _default_env_source(source: Document | None) -> None:
    if not source:
        return
    _default_field_ref(source.get("fieldRef"))
    if reference := source.get("resourceFieldRef"):
        reference["divisor"] = reference.get("divisor") or "0"


def _default_field_ref(reference: Document | None) -> None:
    if reference is not None and not reference.get("apiVersion"):
        reference["apiVersion"] = "v1"


def _default_probe(probe: Document) -> None:
    for name, value in (("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)):
        if not probe.get(name):
            probe[name] = value
    _default_http_get(probe.get("httpGet"))
    grpc = probe.get("grpc")
    if grpc is not None and grpc.get("service") is None:
        grpc["service"] = ""


def _default_http_get(action: Document | None) -> None:
    if action is None:
        return
    if not action.get("path"):
        action["path"] = "/"
    if not action.get("scheme"):
        action["scheme"] = "HTTP"


def _default_volume(volume: Document) -> None:
    sources = [name for name, value in volume.items() if name != "name" and value is not None]
    if not sources:
        volume["emptyDir"] = {}
        return
    for name in sources:
        source = volume[name]
        if name in _WITH_MODE:
            if source.get("defaultMode") is None:
                source["defaultMode"] = _MODE
            _default_projections(source)
        elif name == "hostPath" and source.get("type") is None:
            source["type"] = ""
        elif name == "emptyDir":
            # Of a feature that Kubernetes has switched off, and that nodes of Dray do not have.
            source.pop("mode", None)
        elif name == "image" and not source.get("pullPolicy"):
            source["pullPolicy"] = _pull_policy(source.get("reference") or "")
        elif name == "ephemeral":
            _default_claim_template(source.get("volumeClaimTemplate") or {})


_WITH_MODE: Final = frozenset({"secret", "configMap", "downwardAPI", "projected"})


def _default_projections(source: Document) -> None:
    for item in source.get("items") or ():
        _default_field_ref(item.get("fieldRef"))
    for projection in source.get("sources") or ():
        for item in (projection.get("downwardAPI") or {}).get("items") or ():
            _default_field_ref(item.get("fieldRef"))
        token = projection.get("serviceAccountToken")
        if token is not None and token.get("expirationSeconds") is None:
            token["expirationSeconds"] = _TOKEN_EXPIRATION_SECONDS


def _default_claim_template(template: Document) -> None:
    spec = template.get("spec") or {}
    if spec and not spec.get("volumeMode"):
        spec["volumeMode"] = "Filesystem"
    canonicalize_quantities((spec.get("resources") or {}).get("requests"))


_NANOS_PER_MILLI: Final = 1_000_000


@lru_cache(maxsize=_CACHE_SIZE)
def _canonical(text: str) -> str:
    try:
        quantity = Quantity.parse(text)
    except QuantityError:
        # Decoding rejects such text with its own message; any other caller leaves it to validation.
        return text
    rest = quantity.nanos % _NANOS_PER_MILLI
    return str(Quantity(quantity.nanos + (_NANOS_PER_MILLI - rest), quantity.format) if rest else quantity)


def canonical_quantity(value: Any) -> Any:
    """Return the canonical form: `100m` for `0.1`, `1Gi` for `1024Mi`, text for JSON numbers."""
    if isinstance(value, str):
        return _canonical(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _canonical(repr(value))
    return value


def canonicalize_quantities(resource_list: Document | None) -> None:
    """Put every quantity of a resource list into canonical form."""
    if resource_list:
        for name, value in resource_list.items():
            resource_list[name] = _canonical(value) if value.__class__ is str else canonical_quantity(value)
