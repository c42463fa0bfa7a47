"""A Deployment and its ReplicaSets during planning: each decision sees the changes of the previous ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dray.api.types.apps_v1 import Deployment, ReplicaSet
from dray.controllers.deployment.conditions import Conditions
from dray.controllers.deployment.revisions import as_scaled
from dray.controllers.deployment.strategy import replicas_of


@dataclass(frozen=True, slots=True)
class Create:
    """A ReplicaSet to create; the messages become events after that."""

    replica_set: ReplicaSet
    messages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Update:
    """A ReplicaSet to update; the messages become events after that."""

    replica_set: ReplicaSet
    messages: tuple[str, ...] = ()


class Rollout:
    """State of one plan; `new` and `old` include the changes so far."""

    def __init__(self, deployment: Deployment, replica_sets: Iterable[ReplicaSet], new: ReplicaSet | None) -> None:
        self.deployment = deployment
        self.conditions: Conditions = deployment.status.conditions
        # The revision annotation of the Deployment; None keeps it.
        self.revision: str | None = None
        self.new = new
        self.old = [item for item in replica_sets if new is None or item.metadata.name != new.metadata.name]
        self._creation = ""
        # Name -> messages, in the order of the first changes.
        self._changes: dict[str, list[str]] = {}

    @property
    def all(self) -> list[ReplicaSet]:
        """All ReplicaSets."""
        return [*self.old, *(() if self.new is None else (self.new,))]

    def create(self, replica_set: ReplicaSet) -> None:
        """Create the new ReplicaSet."""
        assert self.new is None
        self.new = replica_set
        self._creation = replica_set.metadata.name or ""
        size = replicas_of(replica_set)
        self._changes[self._creation] = [_message(replica_set, 0, size)] if size else []

    def put(self, replica_set: ReplicaSet) -> None:
        """Update a ReplicaSet, except its size."""
        name = replica_set.metadata.name or ""
        current = next(item for item in self.all if item.metadata.name == name)
        if current is replica_set:
            return
        self._changes.setdefault(name, [])
        self._replace(name, replica_set)

    def scale(self, replica_set: ReplicaSet, replicas: int) -> bool:
        """Scale a ReplicaSet; return whether its size changed."""
        before = replicas_of(replica_set)
        self.put(as_scaled(self.deployment, replica_set, replicas))
        if before == replicas:
            return False
        self._changes[replica_set.metadata.name or ""].append(_message(replica_set, before, replicas))
        return True

    def writes(self) -> tuple[Create | Update, ...]:
        """Return the changes, each ReplicaSet once."""
        states = {item.metadata.name: item for item in self.all}
        return tuple(
            (Create if name == self._creation else Update)(states[name], tuple(messages))
            for name, messages in self._changes.items()
        )

    def _replace(self, name: str, replica_set: ReplicaSet) -> None:
        if self.new is not None and self.new.metadata.name == name:
            self.new = replica_set
        else:
            self.old = [replica_set if item.metadata.name == name else item for item in self.old]


def _message(replica_set: ReplicaSet, before: int, after: int) -> str:
    direction = "up" if after > before else "down"
    return f"Scaled {direction} replica set {replica_set.metadata.name} from {before} to {after}"
