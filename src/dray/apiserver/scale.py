"""Translates between objects with replicas and autoscaling/v1 Scale. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from dray.api.document import Document, GroupVersionKind
from dray.api.errors import BadRequestError, InvalidError
from dray.api.field_errors import Path, invalid
from dray.api.schema.load import kind_type
from dray.api.selectors import LabelSelector
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.registry.columns import AGE, NAME
from dray.apiserver.registry.strategy import Column, ResourceDefinition, Strategy

_SCALE: Final = GroupVersionKind("autoscaling", "v1", "Scale")
_SELECTOR_FIELDS: Final = frozenset({"matchLabels", "matchExpressions"})
_KEPT_METADATA: Final = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def _replicas_in(part: str) -> Callable[[Document, datetime], int]:
    def cell(scale: Document, _now: datetime) -> int:
        return int((scale.get(part) or {}).get("replicas") or 0)

    return cell


def _scale_endpoint() -> Endpoint:
    struct = kind_type(_SCALE)
    assert struct is not None
    definition = ResourceDefinition(
        group=_SCALE.group,
        resource="scales",
        singular="scale",
        kind=_SCALE.kind,
        namespaced=True,
        versions=(_SCALE.version,),
        storage_version=_SCALE.version,
        strategy=Strategy(),
        columns=(
            NAME,
            Column("Desired", "integer", "The desired number of replicas.", _replicas_in("spec")),
            Column("Available", "integer", "The observed number of replicas.", _replicas_in("status")),
            AGE,
        ),
    )
    return Endpoint(definition, _SCALE.version, struct)


SCALE_ENDPOINT: Final = _scale_endpoint()


class Scaler:
    """The paths of a kind's replicas and selector, as in a CRD's scale subresource."""

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint of Scale, for patches of it."""
        return SCALE_ENDPOINT

    def __init__(
        self,
        spec_replicas: Sequence[str] = ("spec", "replicas"),
        status_replicas: Sequence[str] = ("status", "replicas"),
        selector: Sequence[str] = ("spec", "selector"),
    ) -> None:
        self._spec_replicas = tuple(spec_replicas)
        self._status_replicas = tuple(status_replicas)
        self._selector = tuple(selector)

    @property
    def replicas_path(self) -> tuple[str, ...]:
        """The field of the object with the replicas."""
        return self._spec_replicas

    def scale_of(self, document: Document) -> Document:
        """Return the Scale of an object."""
        metadata = document["metadata"]
        status: Document = {"replicas": _lookup(document, self._status_replicas) or 0}
        selector = _selector_text(_lookup(document, self._selector))
        if selector:
            status["selector"] = selector
        replicas = _lookup(document, self._spec_replicas)
        return {
            "kind": _SCALE.kind,
            "apiVersion": _SCALE.api_version,
            "metadata": {name: metadata[name] for name in _KEPT_METADATA if name in metadata},
            "spec": {"replicas": replicas} if replicas is not None else {},
            "status": status,
        }

    def set_replicas(self, document: Document, scale: Document, name: str) -> None:
        """Set the replicas of an object."""
        given = (scale.get("metadata") or {}).get("name")
        if given and given != name:
            raise BadRequestError(f"the name of the object ({given}) does not match the name on the URL ({name})")
        replicas = (scale.get("spec") or {}).get("replicas") or 0
        if replicas < 0:
            complaint = invalid(Path("spec.replicas"), replicas, "must be greater than or equal to 0")
            raise InvalidError(_SCALE.group, _SCALE.kind, name, [complaint])
        *parents, last = self._spec_replicas
        for part in parents:
            document = document.setdefault(part, {})
        document[last] = replicas


def _lookup(document: Document, path: Sequence[str]) -> object:
    value: object = document
    for part in path:
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def _selector_text(selector: object) -> str:
    if isinstance(selector, dict) and not selector.keys() <= _SELECTOR_FIELDS:
        # A ReplicationController selects by plain labels.
        selector = {"matchLabels": selector}
    if isinstance(selector, dict):
        return str(LabelSelector.from_document(selector))
    return selector if isinstance(selector, str) else ""


# The paths of all built-in kinds that can be scaled.
SPEC_REPLICAS: Final = Scaler()
