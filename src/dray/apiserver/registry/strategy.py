"""The seam between the generic request flow and one resource's own rules.

A strategy works on documents in the group's hub (storage) version; the flow decodes, defaults and
converts before it calls one, and encodes afterwards. Strategies are pure: they change only the document
they are given, and what they need of the world is in the `WriteContext`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from dray.api.document import Document, metadata_of
from dray.api.features import FeatureGates
from dray.api.field_errors import FieldErrors
from dray.apiserver.request import UserInfo


class WriteContext(msgspec.Struct, frozen=True):
    """What a strategy may know besides the object."""

    now: datetime
    gates: FeatureGates
    user: UserInfo
    # The live Namespace object of a namespaced write, None for cluster-scoped ones.
    namespace: Document | None = None
    # Answers whether the caller may do something else too (RBAC escalation, SP-35): verb, attributes.
    allowed: Callable[..., bool] = lambda **_: True


class Strategy:
    """The rules of a resource without rules; real strategies override what they need.

    Metadata (names, labels, annotations, owner references, finalizers) is handled by the flow.
    """

    # PUT to a name that does not exist creates it.
    allow_create_on_update: bool = False
    # PUT without a resourceVersion overwrites whatever is there.
    allow_unconditional_update: bool = True
    # "" for subdomain names (the default), or a key of `dray.api.names.NAME_RULES`.
    name_rule: str = ""

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Clear what a creator may not set (status), drop gated fields, set `metadata.generation`."""

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Return the validation errors of a new object."""
        return []

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore what this endpoint may not change, bump the generation when the spec changed."""

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Return the validation errors of a change."""
        return []

    def warnings(self, obj: Document, old: Document | None, context: WriteContext) -> Sequence[str]:
        """Texts for `Warning` headers; `old` is None on create."""
        return ()


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`; priority 1 shows with `-o wide` only. `cell` gets the document and now."""

    name: str
    type: str
    description: str
    cell: Callable[[Document, datetime], Any]
    format: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class ResourceDefinition:
    """A served resource: its names, its versions and its rules."""

    group: str
    resource: str
    singular: str
    kind: str
    namespaced: bool
    # Served versions in order of preference; documents are kept in `storage_version`.
    versions: tuple[str, ...]
    storage_version: str
    strategy: Strategy
    # Rules of the `status` subresource; None when there is none.
    status_strategy: Strategy | None = None
    # Name of further subresources that the flow knows how to serve: scale, binding, eviction, log, token …
    subresources: tuple[str, ...] = ()
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    # Field selectors beside metadata.name and metadata.namespace: label -> value getter.
    selectable_fields: Mapping[str, Callable[[Document], str]] = field(default_factory=dict)
    # Only these versions have the kind, for kinds that differ from their group (DeviceTaintRule).
    verbs: tuple[str, ...] = (
        "create",
        "delete",
        "deletecollection",
        "get",
        "list",
        "patch",
        "update",
        "watch",
    )
    # Objects are deleted with a grace period (Pods).
    graceful_deletion: bool = False
    # The kind of a collection; empty for the usual one.
    own_list_kind: str = ""

    @property
    def list_kind(self) -> str:
        """The kind of a collection."""
        return self.own_list_kind or f"{self.kind}List"


def restore(obj: Document, old: Document, *fields: str) -> None:
    """Give the top-level fields their old values back."""
    for name in fields:
        if name in old:
            obj[name] = old[name]
        else:
            obj.pop(name, None)


def restore_metadata(obj: Document, old: Document, *fields: str) -> None:
    """Give metadata fields their old values back."""
    restore(metadata_of(obj), old.get("metadata") or {}, *fields)


def start_generation(obj: Document) -> None:
    """A new object is of generation 1, whatever the client says."""
    metadata_of(obj)["generation"] = 1


def carry_generation(obj: Document, old: Document, *, changed: bool) -> None:
    """Keep the generation, or go to the next when what it counts has changed."""
    generation = ((old.get("metadata") or {}).get("generation") or 0) + changed
    if generation:
        metadata_of(obj)["generation"] = generation
    else:
        metadata_of(obj).pop("generation", None)


def spec_changed(obj: Document, old: Document) -> bool:
    """Report whether the desired state differs."""
    return (obj.get("spec") or {}) != (old.get("spec") or {})
