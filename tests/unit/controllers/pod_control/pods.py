"""Pods in one line each."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from dray.api.types.core_v1 import ContainerStatus, Pod, PodCondition, PodSpec, PodStatus
from dray.api.types.meta_v1 import ObjectMeta, OwnerReference

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def pod(
    name: str = "p",
    *,
    node: str = "n",
    phase: str = "Running",
    ready_for: float | None = None,
    age: float = 100.0,
    deleting: bool = False,
    restarts: int = 0,
    labels: dict[str, str] | None = None,
    owner: str = "",
    **metadata: Any,
) -> Pod:
    """A Pod; `ready_for` is in seconds, None means that it is not ready."""
    conditions: tuple[PodCondition, ...] = ()
    if ready_for is not None:
        conditions = (PodCondition(type="Ready", status="True", last_transition_time=ago(ready_for)),)
    references = (OwnerReference(api_version="v1", kind="K", name="o", uid=owner, controller=True),) if owner else ()
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="team",
            uid=metadata.pop("uid", f"uid-{name}"),
            creation_timestamp=ago(age),
            deletion_timestamp=NOW if deleting else None,
            labels=labels or {},
            owner_references=references,
            **metadata,
        ),
        spec=PodSpec(node_name=node or None),
        status=PodStatus(
            phase=phase,
            conditions=conditions,
            container_statuses=(ContainerStatus(name="c", restart_count=restarts),),
        ),
    )
