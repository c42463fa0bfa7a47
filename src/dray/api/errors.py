"""The errors that API clients receive, each with its HTTP code, its reason and Kubernetes' message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dray.api.document import Document, GroupResource
from dray.api.field_errors import FieldError, one_line

# Status codes after which a request was certainly not executed, and would be refused again.
_REFUSALS: Final = frozenset({400, 401, 403, 404, 405, 409, 410, 413, 415, 422, 429})

# Some thousand errors. The error that exceeds it is the last one.
_ERRORS_LENGTH_MAX: Final = 256 * 1024


class APIError(Exception):
    """A failed request; `status()` is the `Status` object that the client receives."""

    code = 500
    reason = "InternalError"

    def __init__(self, message: str, *, details: Document | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        self.retry_after_seconds: int | None = None

    def status(self) -> Document:
        """Render as a Kubernetes `Status`."""
        status: Document = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            status["reason"] = self.reason
        details = dict(self.details or {})
        if self.retry_after_seconds is not None:
            details["retryAfterSeconds"] = self.retry_after_seconds
        if details or self.details is not None:
            status["details"] = details
        status["code"] = self.code
        return status


def is_refusal(error: APIError) -> bool:
    """Return whether the server has refused the request, which was certainly not executed."""
    return error.code in _REFUSALS


def is_not_executed(error: APIError) -> bool:
    """Return whether the request was certainly not executed: it was refused, or the store has no space for it now.

    The code of the latter is not enough: proxies use it, too, and Envoy does after it has passed a request on.
    """
    return error.code in _REFUSALS or isinstance(error, InsufficientStorageError)


def error_from_status(status: Document) -> APIError:
    """Return the error that a received `Status` stands for."""
    code, reason = int(status.get("code") or 500), str(status.get("reason") or "")
    cls = _BY_REASON.get(reason, APIError)
    if cls is ConflictError and any(
        cause.get("reason") == DeviceInUseError.cause for cause in (status.get("details") or {}).get("causes") or ()
    ):
        cls = DeviceInUseError
    error = cls.__new__(cls)
    APIError.__init__(error, str(status.get("message") or reason), details=status.get("details"))
    error.code, error.reason = code, reason
    error.retry_after_seconds = (status.get("details") or {}).get("retryAfterSeconds")
    return error


def _details(resource: GroupResource, name: str, causes: Sequence[Document] = ()) -> Document:
    details: Document = {}
    if name:
        details["name"] = name
    if resource.group:
        details["group"] = resource.group
    if resource.resource:
        details["kind"] = resource.resource
    if causes:
        details["causes"] = list(causes)
    return details


class BadRequestError(APIError):
    """The request itself is malformed."""

    code = 400
    reason = "BadRequest"


class UnauthorizedError(APIError):
    """The request has no valid credentials."""

    code = 401
    reason = "Unauthorized"

    def __init__(self, message: str = "Unauthorized") -> None:
        super().__init__(message)


class ForbiddenError(APIError):
    """The caller is not authorized."""

    code = 403
    reason = "Forbidden"

    def __init__(self, resource: GroupResource, name: str, detail: str, *, causes: Sequence[Document] = ()) -> None:
        if name:
            message = f'{resource} "{name}" is forbidden: {detail}'
        elif resource.resource:
            message = f"{resource} is forbidden: {detail}"
        else:
            message = f"forbidden: {detail}"
        super().__init__(message, details=_details(resource, name, causes))


class NotFoundError(APIError):
    """The object does not exist."""

    code = 404
    reason = "NotFound"

    def __init__(self, resource: GroupResource, name: str) -> None:
        super().__init__(f'{resource} "{name}" not found', details=_details(resource, name))


class PathNotFoundError(APIError):
    """No resource is served at the path."""

    code = 404
    reason = "NotFound"

    def __init__(self) -> None:
        super().__init__("the server could not find the requested resource", details={})


class MethodNotAllowedError(APIError):
    """The resource does not support the verb."""

    code = 405
    reason = "MethodNotAllowed"

    def __init__(self) -> None:
        super().__init__("the server does not allow this method on the requested resource", details={})


class NotAcceptableError(APIError):
    """The server supports none of the media types that the client accepts."""

    code = 406
    reason = "NotAcceptable"

    def __init__(self, accepted: Sequence[str]) -> None:
        super().__init__(
            "only the following media types are accepted: " + ", ".join(accepted),
        )


class AlreadyExistsError(APIError):
    """An object of that name already exists."""

    code = 409
    reason = "AlreadyExists"

    def __init__(self, resource: GroupResource, name: str) -> None:
        super().__init__(f'{resource} "{name}" already exists', details=_details(resource, name))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


class ConflictError(APIError):
    """The object was modified since the client read it."""

    code = 409
    reason = "Conflict"

    def __init__(
        self, resource: GroupResource, name: str, detail: str = MODIFIED, *, causes: Sequence[Document] = ()
    ) -> None:
        super().__init__(
            f'Operation cannot be fulfilled on {resource} "{name}": {detail}',
            details=_details(resource, name, causes),
        )


class DeviceInUseError(ConflictError):
    """The allocation takes a device, a share or a counter that another claim holds.

    The reason of the cause tells it from a lost race for the claim itself.
    """

    cause = "DeviceInUse"

    def __init__(self, resource: GroupResource, name: str, detail: str) -> None:
        field = "status.allocation.devices.results"
        super().__init__(resource, name, detail, causes=[{"reason": self.cause, "message": detail, "field": field}])


class ApplyConflictError(APIError):
    """Server-side apply conflicts with fields of other managers."""

    code = 409
    reason = "Conflict"

    def __init__(self, message: str, causes: Sequence[Document]) -> None:
        super().__init__(message, details={"causes": list(causes)})


class ExpiredError(APIError):
    """The requested revision has been compacted; `continue_token` continues a list with newer objects."""

    code = 410
    reason = "Expired"

    def __init__(self, message: str, *, continue_token: str = "") -> None:
        super().__init__(message)
        self.continue_token = continue_token

    def status(self) -> Document:
        """Render as a Kubernetes `Status`."""
        status = super().status()
        if self.continue_token:
            status["metadata"]["continue"] = self.continue_token
        return status


class GoneError(APIError):
    """The requested object is permanently unavailable."""

    code = 410
    reason = "Gone"


class RequestEntityTooLargeError(APIError):
    """The request body exceeds the size limit."""

    code = 413
    reason = "RequestEntityTooLarge"


class UnsupportedMediaTypeError(APIError):
    """The media type of the request body is not supported."""

    code = 415
    reason = "UnsupportedMediaType"

    def __init__(self, accepted: Sequence[str]) -> None:
        super().__init__(
            "the body of the request was in an unknown format - accepted media types include: " + ", ".join(accepted)
        )


class InvalidError(APIError):
    """The object violates validation rules of its kind; each one is a cause."""

    code = 422
    reason = "Invalid"

    def __init__(self, group: str, kind: str, name: str, errors: Sequence[FieldError]) -> None:
        shown, text = _shown(errors)
        causes = [{"reason": error.type.value, "message": body, "field": error.path} for error, body in shown]
        qualified = GroupResource(group, kind)
        super().__init__(
            f'{qualified} "{name}" is invalid: {text}' if errors else f'{qualified} "{name}" is invalid',
            details=_details(qualified, name, causes),
        )
        self.errors = tuple(errors)


def _shown(errors: Sequence[FieldError]) -> tuple[list[tuple[FieldError, str]], str]:
    """Return the errors that are shown with their bodies, and all of them in one line.

    Every error may quote the whole object: without a limit, an object of 32 KB could get an answer of 23 MB.
    """
    shown: list[tuple[FieldError, str]] = []
    left = _ERRORS_LENGTH_MAX
    for error in errors:
        body = error.body
        left -= len(body)
        shown.append((error, body))
        if left < 0:
            break
    texts = [f"{error.path}: {body}" for error, body in shown]
    if len(shown) < len(errors):
        texts.append(f"and {len(errors) - len(shown)} more errors")
    return shown, one_line(texts)


class TooManyRequestsError(APIError):
    """The client exceeds its rate limit."""

    code = 429
    reason = "TooManyRequests"

    def __init__(self, message: str, retry_after_seconds: int = 1) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class InternalError(APIError):
    """A bug, or a failed component of the server."""

    code = 500
    reason = "InternalError"

    def __init__(self, detail: Any) -> None:
        super().__init__(f"Internal error occurred: {detail}", details={"causes": [{"message": str(detail)}]})


class NotOfferedError(APIError):
    """The request needs what this kind of node does not have. A code of HTTP; Kubernetes has no reason for it."""

    code = 501
    reason = "NotImplemented"


class ServiceUnavailableError(APIError):
    """The server is temporarily unable to handle the request."""

    code = 503
    reason = "ServiceUnavailable"


class RequestTimeoutError(APIError):
    """The request was not completed in time."""

    code = 504
    reason = "Timeout"


class InsufficientStorageError(APIError):
    """The store has no space left: the write was not stored. A code of HTTP; Kubernetes has no reason for it."""

    code = 507
    reason = "InsufficientStorage"


_BY_REASON: dict[str, type[APIError]] = {
    cls.reason: cls
    for cls in (
        BadRequestError,
        UnauthorizedError,
        ForbiddenError,
        NotFoundError,
        MethodNotAllowedError,
        NotAcceptableError,
        AlreadyExistsError,
        ConflictError,
        ExpiredError,
        GoneError,
        RequestEntityTooLargeError,
        UnsupportedMediaTypeError,
        InvalidError,
        TooManyRequestsError,
        InternalError,
        NotOfferedError,
        ServiceUnavailableError,
        InsufficientStorageError,
        RequestTimeoutError,
    )
}


class PatchRejectedError(APIError):
    """The patch is well-formed but does not apply to the object; Kubernetes does not report the cause."""

    code = 422
    reason = "Invalid"

    def __init__(self, detail: str) -> None:
        super().__init__("the server rejected our request due to an error in our request", details={})
        # For the log only.
        self.detail = detail


class PatchFailedError(APIError):
    """The patch cannot be applied; Kubernetes returns the plain text without a reason."""

    code = 500
    reason = ""
