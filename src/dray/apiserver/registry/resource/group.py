"""What the resources of the group share: versions, selector compilation, generations, and status writes."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from dray.api.document import Document
from dray.api.validation.resource_claim import SelectorVerdict

GROUP: Final = "resource.k8s.io"
VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
STORAGE_VERSION: Final = "v1"

# Drivers and users repeat a few selectors over and over.
_SELECTOR_CACHE_SIZE: Final = 4096

# A status write may not touch these.
_RESTORED_METADATA: Final = ("labels", "annotations", "finalizers", "ownerReferences", "generation")


@lru_cache(_SELECTOR_CACHE_SIZE)
def compile_selector(expression: str) -> SelectorVerdict:
    """Compile a CEL selector of devices."""
    from dray.cel.environments import compile_device_selector
    from dray.cel.errors import CELError

    try:
        compiled = compile_device_selector(expression)
    except CELError as error:
        return SelectorVerdict(error=_explained(str(error)))
    return SelectorVerdict(cost=compiled.estimated_cost)


def _explained(text: str) -> str:
    """What the compiler itself reports is introduced; a wrong result type speaks for itself."""
    return f"compilation failed: {text}" if text.startswith("ERROR: ") else text


def start_generation(obj: Document) -> None:
    """The first generation of a new object."""
    obj["metadata"]["generation"] = 1


def bump_generation(obj: Document, old: Document) -> None:
    """A changed spec is a new generation."""
    if obj.get("spec") != old.get("spec"):
        obj["metadata"]["generation"] = (old["metadata"].get("generation") or 0) + 1


def restore_for_status(obj: Document, old: Document) -> None:
    """Take back what a write to the status subresource may not change: spec and metadata."""
    if "spec" in old:
        obj["spec"] = old["spec"]
    else:
        obj.pop("spec", None)
    metadata, stored = obj["metadata"], old["metadata"]
    for field in _RESTORED_METADATA:
        if field in stored:
            metadata[field] = stored[field]
        else:
            metadata.pop(field, None)


def restore_status(obj: Document, old: Document) -> None:
    """Take back what a write to the object itself may not change."""
    obj["status"] = old.get("status") or {}
