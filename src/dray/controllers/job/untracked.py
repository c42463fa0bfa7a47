"""Pods whose finalizer the controller has removed and whose informer has not told of it yet; pure."""

from __future__ import annotations

from dray.api.types.core_v1 import Pod


class UntrackedPods:
    """Counting one of them again would count it twice."""

    def __init__(self) -> None:
        # Uid -> whether the server has said that the finalizer is gone.
        self._removals: dict[str, bool] = {}

    def removing(self, uid: str) -> None:
        """The finalizer is about to be removed."""
        self._removals[uid] = False

    def removed(self, uid: str) -> None:
        """The server has said so; nothing to remember when the informer was faster."""
        if uid in self._removals:
            self._removals[uid] = True

    def not_removed(self, uid: str) -> None:
        """It is not known to be gone."""
        self._removals.pop(uid, None)

    def told(self, pod: Pod, *, tracked: bool) -> None:
        """The informer has told of the Pod; a deleted one is not tracked."""
        if not tracked:
            self._removals.pop(pod.metadata.uid or "", None)

    def __contains__(self, uid: object) -> bool:
        return self._removals.get(uid, False) if isinstance(uid, str) else False
