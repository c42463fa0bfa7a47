"""What strategies do to objects before they are judged: generations, and fields an endpoint may not touch."""

from __future__ import annotations

from dray.api.document import Document, metadata_of


def restore(obj: Document, old: Document, *fields: str) -> None:
    """Give the top-level fields their old values back."""
    for field in fields:
        if field in old:
            obj[field] = old[field]
        else:
            obj.pop(field, None)


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
    """Whether the desired state differs."""
    return (obj.get("spec") or {}) != (old.get("spec") or {})
