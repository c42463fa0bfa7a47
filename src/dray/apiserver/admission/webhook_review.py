"""AdmissionReviews: what a webhook is sent, and what its answer means. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import orjson

from dray.api.document import Document, GroupVersionKind
from dray.api.errors import APIError, error_from_status
from dray.api.raw_numbers import fragment
from dray.api.schema.load import kind_type
from dray.api.schema.model import StructType
from dray.api.strict import DecodeError, check_fields

ANSWER_BYTES_MAX: Final = 3 * 1024 * 1024
_GROUP: Final = "admission.k8s.io"
_KIND: Final = "AdmissionReview"
_FAILURE_CODE_MIN: Final = 400
_FAILURE_CODE_MAX: Final = 599
# kube-apiserver sends the first version of the list that it knows.
_VERSIONS: Final = ("v1", "v1beta1")


class InvalidAnswerError(Exception):
    """A webhook answered with something that is not a review of its request."""


class Answer(msgspec.Struct, frozen=True):
    """The answer of a webhook."""

    allowed: bool
    # The operations of a JSON patch; None if there is none.
    patch: bytes | None
    # The reason, message and code of a denial.
    status: Document
    warnings: tuple[str, ...]
    annotations: Mapping[str, str]


def review_version(versions: list[str]) -> str:
    """Return the version of the review that a webhook gets; empty if it accepts none."""
    return next((version for version in versions if version in _VERSIONS), "")


def review_body(request: Document, uid: str, new: Document | None, old: Document | None, version: str) -> bytes:
    """Return the body of a request to a webhook."""
    content = {"uid": uid, **request, "object": new, "oldObject": old}
    ordered = {name: content[name] for name in _ORDER if name in content}
    review = {"kind": _KIND, "apiVersion": f"{_GROUP}/{version}", "request": ordered}
    return orjson.dumps(review, default=fragment)


_ORDER: Final = (
    "uid",
    "kind",
    "resource",
    "subResource",
    "requestKind",
    "requestResource",
    "requestSubResource",
    "name",
    "namespace",
    "operation",
    "userInfo",
    "object",
    "oldObject",
    "dryRun",
    "options",
)


def parse_answer(body: bytes, uid: str, version: str, *, mutating: bool) -> Answer:
    """Return the answer of a webhook; raises `InvalidAnswerError` with Kubernetes' text."""
    review = _parse(body)
    given = (review.get("apiVersion") or "", review.get("kind") or "")
    if given != (f"{_GROUP}/{version}", _KIND):
        shown = f"{given[0]}, Kind={given[1]}"
        raise InvalidAnswerError(f"expected webhook response of {_GROUP}/{version}, Kind={_KIND}, got {shown}")
    response = review.get("response")
    if not isinstance(response, dict):
        raise InvalidAnswerError("webhook response was absent")
    if version == "v1" and response.get("uid") != uid:
        raise InvalidAnswerError(f'expected response.uid="{uid}", got "{response.get("uid", "")}"')
    warnings, annotations = response.get("warnings") or [], response.get("auditAnnotations") or {}
    if not isinstance(warnings, list) or not isinstance(annotations, dict):
        raise InvalidAnswerError("webhook response has warnings or auditAnnotations of the wrong type")
    status = response.get("status") or response.get("result") or {}
    try:
        check_fields(status, _status_type())
    except DecodeError as error:
        raise InvalidAnswerError(str(error)) from None
    return Answer(
        response.get("allowed") is True,
        _patch(response, mutating=mutating, strict=version == "v1"),
        status,
        tuple(text for text in warnings if isinstance(text, str)),
        {key: str(value) for key, value in annotations.items()},
    )


def _status_type() -> StructType:
    found = kind_type(GroupVersionKind("", "v1", "Status"))
    assert found is not None
    return found


def _parse(body: bytes) -> Document:
    try:
        review = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidAnswerError(f"couldn't get version/kind; json parse error: {error}") from None
    if not isinstance(review, dict):
        raise InvalidAnswerError("couldn't get version/kind; json parse error: the answer is not an object")
    return review


def _patch(response: Document, *, mutating: bool, strict: bool) -> bytes | None:
    text, kind = response.get("patch"), response.get("patchType")
    if not mutating:
        if text:
            raise InvalidAnswerError("validating webhook may not return response.patch")
        if kind:
            raise InvalidAnswerError("validating webhook may not return response.patchType")
        return None
    if text and not kind and strict:
        raise InvalidAnswerError("webhook returned response.patch but not response.patchType")
    if kind and not text and strict:
        raise InvalidAnswerError("webhook returned response.patchType but not response.patch")
    if not text:
        return None
    if strict and kind != "JSONPatch":
        raise InvalidAnswerError(f'webhook returned invalid response.patchType of "{kind}"')
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise InvalidAnswerError("webhook returned a response.patch that is not base64") from None


def denial(name: str, status: Document) -> APIError:
    """Return the error of a denied write."""
    given: dict[str, Any] = dict(status)
    code = given.get("code")
    is_failure = isinstance(code, int) and _FAILURE_CODE_MIN <= code <= _FAILURE_CODE_MAX
    given["code"] = code if is_failure else _FAILURE_CODE_MIN
    head = f'admission webhook "{name}" denied the request'
    if given.get("message"):
        given["message"] = f"{head}: {given['message']}"
    elif given.get("reason"):
        given["message"] = f"{head}: {given['reason']}"
    else:
        given["message"] = f"{head} without explanation"
    error = error_from_status(given)
    error.code = given["code"]
    if error.retry_after_seconds is not None and error.retry_after_seconds <= 0:
        error.retry_after_seconds = None
    return error
