"""The failures of patching that no other part of the API has."""

from __future__ import annotations

from dray.api.errors import APIError


class PatchRejectedError(APIError):
    """The patch is well formed but does not fit the object; Kubernetes keeps the cause to itself."""

    code = 422
    reason = "Invalid"

    def __init__(self, why: str) -> None:
        super().__init__("the server rejected our request due to an error in our request", details={})
        # For the log only.
        self.why = why


class PatchFailedError(APIError):
    """The patch cannot be carried out; Kubernetes answers with the bare text and no reason."""

    code = 500
    reason = ""
