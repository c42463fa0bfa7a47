"""What a driver's answer to a batch means: every claim asked for must be in it, none else, and none with an error.

Pure. An answer with any fault is a fault of the whole call, as in Kubernetes; what it says of good claims is lost
and asked again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dray.api.document import UID
from dray.node.dra.book import ClaimRef

PREPARE: Final = "NodePrepareResources"
UNPREPARE: Final = "NodeUnprepareResources"


class ResponseError(Exception):
    """An answer that does not settle what was asked."""


def check_response(method: str, claims: Sequence[ClaimRef], errors: Mapping[str, str]) -> tuple[UID, ...]:
    """The claims' UIDs when all is well; `errors` has the text of each entry of the answer, empty for success."""
    asked = {claim.uid: claim for claim in claims}
    for uid in sorted(errors):
        claim = asked.get(UID(uid))
        if claim is None:
            raise ResponseError(f"{method} returned result for unknown claim UID {uid}")
        if errors[uid]:
            raise ResponseError(f"{method} failed for ResourceClaim {claim.key.name}: {errors[uid]}")
    skipped = len(claims) - len(errors)
    if skipped:
        raise ResponseError(f"{method} skipped {skipped} ResourceClaims")
    return tuple(asked)
