"""Objects that do not decode as their kind: tools leave them out, as components do, and say so. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from dray.api.document import Document, GroupVersion, GroupVersionKind
from dray.api.types import Message, apps_v1, batch_v1, cdi_v1alpha1, core_v1, policy_v1, resource_v1

# The types of the kinds that tools and components read as structures, by apiVersion and kind.
_TYPES: Final[Mapping[tuple[str, str], type[Message]]] = {
    ("v1", "Node"): core_v1.Node,
    ("v1", "Pod"): core_v1.Pod,
    ("v1", "ResourceQuota"): core_v1.ResourceQuota,
    ("apps/v1", "Deployment"): apps_v1.Deployment,
    ("apps/v1", "ReplicaSet"): apps_v1.ReplicaSet,
    ("apps/v1", "DaemonSet"): apps_v1.DaemonSet,
    ("apps/v1", "StatefulSet"): apps_v1.StatefulSet,
    ("batch/v1", "Job"): batch_v1.Job,
    ("policy/v1", "PodDisruptionBudget"): policy_v1.PodDisruptionBudget,
    ("resource.k8s.io/v1", "DeviceClass"): resource_v1.DeviceClass,
    ("resource.k8s.io/v1", "ResourceClaim"): resource_v1.ResourceClaim,
    ("resource.k8s.io/v1", "ResourceClaimTemplate"): resource_v1.ResourceClaimTemplate,
    ("resource.k8s.io/v1", "ResourceSlice"): resource_v1.ResourceSlice,
    ("cdi.k8s.io/v1alpha1", "ResourceClaim"): cdi_v1alpha1.ResourceClaim,
    ("cdi.k8s.io/v1alpha1", "ResourceClass"): cdi_v1alpha1.ResourceClass,
}


@dataclass(frozen=True, slots=True)
class UndecodableObject:
    """An object that is left out."""

    kind: str
    group: str
    namespace: str
    name: str
    problem: str

    @property
    def title(self) -> str:
        """The object's kind and name, as in findings."""
        place = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.kind.lower()} {place}"


def decoding_problem(document: Document) -> str | None:
    """Return why an object in the hub version does not decode; None if it does."""
    api_version, kind = document["apiVersion"], document["kind"]
    type_: Any = _TYPES.get((api_version, kind))
    if type_ is None:
        return _form_problem(document, GroupVersion.parse(api_version).kind(kind))
    try:
        msgspec.convert(document, type_)
    except msgspec.ValidationError as error:
        return str(error)
    return None


def _form_problem(document: Document, gvk: GroupVersionKind) -> str | None:
    # Imported on use: it loads YAML, which is not needed to print a help text.
    from dray.api.object_form import FormError, formed
    from dray.api.schema.load import kind_type

    try:
        formed(document, kind_type(gvk))
    except FormError as error:
        return str(error)
    return None
