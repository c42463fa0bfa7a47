"""Strategies of kinds with the usual division: users own the spec, a controller owns the status."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from dray.api.document import Document, copy_document
from dray.api.field_errors import FieldErrors
from dray.apiserver.registry.gated_fields import GatedFields, drop_disabled_fields
from dray.apiserver.registry.strategy import (
    Strategy,
    WriteContext,
    carry_generation,
    restore,
    restore_metadata,
    start_generation,
)

Validate: TypeAlias = Callable[[Document], FieldErrors]
ValidateUpdate: TypeAlias = Callable[[Document, Document], FieldErrors]
# Returns the texts of `Warning` headers for an object and its old state, None on create.
Warn: TypeAlias = Callable[[Document, Document | None], Sequence[str]]

# Fields of an object that are neither desired state nor status.
_NOT_DESIRED: Final = frozenset({"kind", "apiVersion", "metadata", "status"})


def desired_state_changed(obj: Document, old: Document) -> bool:
    """Report whether anything but metadata and status differs; empty and unset are equal."""
    names = (obj.keys() | old.keys()) - _NOT_DESIRED
    return any((obj.get(name) or None) != (old.get(name) or None) for name in names)


def desired_state_or_annotations_changed(obj: Document, old: Document) -> bool:
    """Report the same, or that the annotations differ."""
    annotations = [(item.get("metadata") or {}).get("annotations") or {} for item in (obj, old)]
    return desired_state_changed(obj, old) or annotations[0] != annotations[1]


class GenericStrategy(Strategy):
    """Strategy of a kind, from its rules.

    `initial_status` is the status of a new object, None for a kind without one. A kind without generation never has
    `metadata.generation`; that of the others grows when the object has `changed`. `fields` are those that are dropped
    while their feature is disabled.
    """

    def __init__(  # noqa: PLR0913 - the rules of a kind, by name
        self,
        validate: Validate | None = None,
        validate_update: ValidateUpdate | None = None,
        *,
        initial_status: Mapping[str, Any] | None = None,
        generation: bool = True,
        unconditional_update: bool = True,
        create_on_update: bool = False,
        name_rule: str = "",
        changed: Callable[[Document, Document], bool] = desired_state_changed,
        warn: Warn | None = None,
        fields: tuple[GatedFields, ...] = (),
    ) -> None:
        self._validate = validate
        self._fields = fields
        self._validate_update = validate_update
        self._initial_status = initial_status
        self._generation = generation
        self._changed = changed
        self._warn = warn
        self.allow_unconditional_update = unconditional_update
        self.allow_create_on_update = create_on_update
        self.name_rule = name_rule

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Reset the status, drop disabled fields and start the generation."""
        if self._initial_status is not None:
            obj["status"] = copy_document(dict(self._initial_status))
        if self._fields:
            context.warnings.extend(drop_disabled_fields(self._fields, obj, None, context.gates))
        if self._generation:
            start_generation(obj)

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Validate a new object."""
        return self._validate(obj) if self._validate else []

    def warnings(self, obj: Document, old: Document | None, context: WriteContext) -> Sequence[str]:
        """Return the texts of `Warning` headers."""
        return self._warn(obj, old) if self._warn is not None else ()

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore the status, drop disabled fields, and increment the generation when the desired state changed."""
        if self._initial_status is not None:
            restore(obj, old, "status")
        if self._fields:
            drop_disabled_fields(self._fields, obj, old, context.gates)
        if self._generation:
            carry_generation(obj, old, changed=self._changed(obj, old))

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate a changed object."""
        if self._validate_update is not None:
            return self._validate_update(obj, old)
        return self._validate(obj) if self._validate else []


# Metadata that users and controllers set.
OWN_METADATA: Final = ("labels", "annotations", "finalizers", "ownerReferences")


class GenericStatusStrategy(Strategy):
    """Strategy of the status subresource: everything but the status is restored, the metadata of some kinds only."""

    def __init__(
        self,
        validate: ValidateUpdate | None = None,
        *,
        unconditional_update: bool = True,
        restored_metadata: Sequence[str] = (),
    ) -> None:
        self._validate = validate
        self._restored_metadata = (*restored_metadata, "generation")
        self.allow_unconditional_update = unconditional_update

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore the desired state."""
        restore(obj, old, *((obj.keys() | old.keys()) - _NOT_DESIRED))
        restore_metadata(obj, old, *self._restored_metadata)

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate the status."""
        return self._validate(obj, old) if self._validate else []
