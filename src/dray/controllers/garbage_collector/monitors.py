"""How the collector follows one kind: by metadata alone, or through an informer that others read too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dray.api.document import Document, GroupResource
from dray.client.interface import Resource
from dray.client.loop import InformerLoop
from dray.controllers.garbage_collector.graph import Observed, observe_structure
from dray.controllers.garbage_collector.kept import Plain, full


@dataclass(frozen=True, slots=True)
class Monitor:
    """A kind whose informer keeps nothing but what matters."""

    kind: GroupResource
    # How the server is asked for single objects.
    requests: Resource[Document]
    informer: InformerLoop[Any]
    # When the kind began to be followed.
    since: float

    def find(self, name: str, namespace: str) -> Observed | None:
        """One object, as far as the informer knows."""
        obj = self.informer.lister.get(name, namespace if self.requests.namespaced else "")
        return self.observe(obj) if obj is not None else None

    def observe(self, obj: Any) -> Observed:
        """What matters of an object that the informer tells of."""
        return full(self.kind, obj)

    def is_news(self, old: Any, new: Any) -> bool:
        """Whether anything that matters has changed; most writes change a status."""
        if isinstance(old, Plain) and isinstance(new, Plain):
            return False
        before, after = self.observe(old), self.observe(new)
        return (before.finalizers, before.being_deleted, before.owners) != (
            after.finalizers,
            after.being_deleted,
            after.owners,
        )


@dataclass(frozen=True, slots=True)
class SharedMonitor(Monitor):
    """A kind whose informer keeps whole objects, since others need them."""

    def observe(self, obj: Any) -> Observed:
        """What matters of an object that the informer tells of."""
        return observe_structure(self.kind, obj)

    def is_news(self, old: Any, new: Any) -> bool:
        """Whether anything that matters has changed; most writes change a status."""
        before, after = old.metadata, new.metadata
        return bool(
            before.finalizers != after.finalizers
            or (before.deletion_timestamp is None) != (after.deletion_timestamp is None)
            or before.owner_references != after.owner_references
        )
