"""The objects that every namespace contains by default. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dray.api.document import Document

SERVICE_ACCOUNT: Final = "default"
ROOT_CA: Final = "kube-root-ca.crt"
_CERTIFICATE_KEY: Final = "ca.crt"
_DESCRIPTION: Final = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the "
    "internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes "
    "clusters."
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The objects to write; None where nothing has to be written."""

    create_service_account: Document | None = None
    create_config_map: Document | None = None
    update_config_map: Document | None = None


def plan_namespace(
    namespace: Document | None, service_account: Document | None, config_map: Document | None, root_ca: str
) -> Plan:
    """Compare a namespace with its defaults; an empty `root_ca` publishes none."""
    if namespace is None or namespace["metadata"].get("deletionTimestamp"):
        return Plan()
    name = namespace["metadata"]["name"]
    return Plan(
        create_service_account=_service_account(name) if service_account is None else None,
        create_config_map=_config_map(name, root_ca) if root_ca and config_map is None else None,
        update_config_map=_corrected(config_map, root_ca) if root_ca and config_map is not None else None,
    )


def _service_account(namespace: str) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": SERVICE_ACCOUNT, "namespace": namespace},
    }


def _config_map(namespace: str, root_ca: str) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": ROOT_CA,
            "namespace": namespace,
            "annotations": {"kubernetes.io/description": _DESCRIPTION},
        },
        "data": {_CERTIFICATE_KEY: root_ca},
    }


def _corrected(config_map: Document, root_ca: str) -> Document | None:
    """Return the map with nothing but the certificate: clients trust the whole map. None if it is correct."""
    if config_map.get("data") == {_CERTIFICATE_KEY: root_ca}:
        return None
    return {**config_map, "data": {_CERTIFICATE_KEY: root_ca}}
