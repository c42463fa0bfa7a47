"""Parses and validates the query parameters of each verb; the error messages are those of kube-apiserver. Pure."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import orjson

from dray.api.document import Document
from dray.api.errors import APIError, BadRequestError, InvalidError
from dray.api.field_errors import (
    FieldError,
    FieldErrors,
    Path,
    forbidden,
    invalid,
    not_supported,
    required,
    too_long,
)
from dray.api.limits import INTEGER_DIGITS_MAX
from dray.api.selectors import FieldSelector, LabelSelector, SelectorError
from dray.api.timestamps import TimeFormatError, parse_duration_nanoseconds
from dray.apiserver.routes import is_true

_ROOT: Final = Path()
_FIELD_MANAGER: Final = _ROOT.child("fieldManager")
_PROPAGATION_POLICY: Final = _ROOT.child("propagationPolicy")
_FIELD_MANAGER_LENGTH_MAX: Final = 128
_INT64_MAX: Final = 2**63 - 1
_UINT64_MAX: Final = 2**64 - 1
_UINT64_DIGITS: Final = 20
_INT64_DIGITS: Final = 19
# Leading zeros are allowed, within what Python converts.
_TEXT_DIGITS_MAX: Final = 1000
_UINT: Final = re.compile(r"[0-9]+")
_INT: Final = re.compile(r"[+-]?[0-9]+")


class UnparsableVersionError(APIError):
    """A resourceVersion that is not a number, where kube-apiserver returns 500 without a reason."""

    code = 500
    reason = ""


class WriteOptions(msgspec.Struct, frozen=True):
    """Options of create, update and patch."""

    dry_run: bool = False
    field_validation: str = "Warn"
    field_manager: str = ""
    force: bool = False


_NO_OPTIONS: Final = WriteOptions()


class DeleteOptions(msgspec.Struct, frozen=True):
    """Options of delete, from the query or the body."""

    dry_run: bool = False
    grace_period_seconds: int | None = None
    propagation_policy: str = ""
    orphan_dependents: bool | None = None
    uid: str | None = None
    resource_version: str | None = None


@dataclass(frozen=True, slots=True)
class ListOptions:
    """Options of list, watch and deletecollection. `revision` is None when no resourceVersion was given."""

    label_selector: LabelSelector | None = None
    field_selector: FieldSelector | None = None
    limit: int = 0
    continue_token: str = ""
    revision: int | None = None
    revision_match: str = ""
    watch: bool = False
    allow_bookmarks: bool = False
    send_initial_events: bool | None = None
    timeout_seconds: int | None = None


def parse_timeout_seconds(text: str, maximum: float) -> float:
    """Return the `timeout` of a request; none or zero means the maximum, which a longer one cannot exceed."""
    if not text:
        return maximum
    try:
        seconds = parse_duration_nanoseconds(text) / 1e9
    except TimeFormatError as error:
        raise BadRequestError(f"invalid timeout specified in the request URL - {error}") from error
    return min(seconds, maximum) if seconds > 0 else maximum


def parse_revision(text: str) -> int:
    """Return a resourceVersion as a number; the error message is that of Go's parser."""
    if not _UINT.fullmatch(text):
        raise UnparsableVersionError(f'strconv.ParseUint: parsing "{text}": invalid syntax')
    return _revision_of(text)


def _revision_of(text: str) -> int:
    """Return the number of some digits; one that no store reaches stands for the largest."""
    if len(text) < _INT64_DIGITS:
        return int(text)
    digits = text.lstrip("0") or "0"
    if len(digits) > _UINT64_DIGITS or int(digits) > _UINT64_MAX:
        shown = shortened(text)
        raise BadRequestError(f'invalid resource version: strconv.ParseUint: parsing "{shown}": value out of range')
    return min(int(digits), _INT64_MAX)


def shortened(text: str) -> str:
    """Return the beginning of a text that may be very long, for a message."""
    return text if len(text) <= INTEGER_DIGITS_MAX else f"{text[:INTEGER_DIGITS_MAX]}..."


def parse_write_options(query: Mapping[str, str], kind: str, *, apply: bool | None = None) -> WriteOptions:
    """Parse CreateOptions, UpdateOptions or PatchOptions; `apply` is None unless the request is a patch."""
    if not query:
        if apply:
            raise _invalid(kind, [required(_FIELD_MANAGER, "is required for apply patch")])
        return _NO_OPTIONS
    errors: FieldErrors = []
    dry_run = _dry_run(query.get("dryRun"), errors)
    validation = query.get("fieldValidation") or "Warn"
    if validation not in ("Ignore", "Strict", "Warn"):
        path = _ROOT.child("fieldValidation")
        errors.append(not_supported(path, validation, ["", "Ignore", "Strict", "Warn"]))
    manager = query.get("fieldManager", "")
    errors.extend(_check_manager(manager, apply=apply))
    force = is_true(query.get("force")) if "force" in query else None
    if force is not None and apply is False:
        errors.append(forbidden(_ROOT.child("force"), "may not be specified for non-apply patch"))
    if errors:
        raise _invalid(kind, errors)
    return WriteOptions(dry_run, validation, manager, bool(force))


def _check_manager(manager: str, *, apply: bool | None) -> list[FieldError]:
    if not manager:
        return [required(_FIELD_MANAGER, "is required for apply patch")] if apply else []
    if len(manager) > _FIELD_MANAGER_LENGTH_MAX:
        return [too_long(_FIELD_MANAGER, _FIELD_MANAGER_LENGTH_MAX)]
    if not manager.isprintable():
        return [invalid(_FIELD_MANAGER, manager, "should only contain printable characters")]
    return []


def _dry_run(value: str | None, errors: FieldErrors) -> bool:
    if value is None or value == "":
        return False
    if value != "All":
        errors.append(not_supported(_ROOT.child("dryRun"), [value], ["All"]))
    return True


def _invalid(kind: str, errors: FieldErrors) -> InvalidError:
    return InvalidError("meta.k8s.io", kind, "", errors)


_POLICIES: Final = ("Foreground", "Background", "Orphan")


def parse_delete_options(query: Mapping[str, str], body: Document | None) -> DeleteOptions:
    """Parse DeleteOptions; a body takes precedence over the query, as in Kubernetes."""
    source = body if body is not None else _delete_options_of(query)
    errors: FieldErrors = []
    dry_runs = source.get("dryRun") or []
    dry_run = _dry_run(dry_runs[0] if dry_runs else query.get("dryRun"), errors)
    policy = source.get("propagationPolicy")
    orphan = source.get("orphanDependents")
    if policy is not None and orphan is not None:
        both = "orphanDependents and deletionPropagation cannot be both set"
        errors.append(invalid(_PROPAGATION_POLICY, policy, both))
    if policy is not None and policy not in _POLICIES:
        errors.append(not_supported(_PROPAGATION_POLICY, policy, (*_POLICIES, "nil")))
    if errors:
        raise _invalid("DeleteOptions", errors)
    preconditions = source.get("preconditions") or {}
    return DeleteOptions(
        dry_run=dry_run,
        grace_period_seconds=source.get("gracePeriodSeconds"),
        propagation_policy=policy or "",
        orphan_dependents=orphan,
        uid=preconditions.get("uid"),
        resource_version=preconditions.get("resourceVersion"),
    )


def _delete_options_of(query: Mapping[str, str]) -> Document:
    options: Document = {}
    if "gracePeriodSeconds" in query:
        options["gracePeriodSeconds"] = parse_int(query["gracePeriodSeconds"])
    if "propagationPolicy" in query:
        options["propagationPolicy"] = query["propagationPolicy"]
    if "orphanDependents" in query:
        options["orphanDependents"] = is_true(query["orphanDependents"])
    if "dryRun" in query:
        options["dryRun"] = [query["dryRun"]]
    return options


def parse_int(text: str) -> int:
    """Return a decimal query parameter; the error message is that of Go's parser."""
    if not _INT.fullmatch(text):
        raise BadRequestError(f'strconv.ParseInt: parsing "{shortened(text)}": invalid syntax')
    number = int(text) if len(text.lstrip("+-0")) <= _UINT64_DIGITS and len(text) <= _TEXT_DIGITS_MAX else _UINT64_MAX
    if not -_INT64_MAX - 1 <= number <= _INT64_MAX:
        raise BadRequestError(f'strconv.ParseInt: parsing "{shortened(text)}": value out of range')
    return number


def parse_list_options(query: Mapping[str, str], *, watch: bool) -> ListOptions:
    """Parse ListOptions."""
    if not query:
        return ListOptions(watch=watch)
    limit = parse_int(query["limit"]) if query.get("limit") else 0
    timeout = parse_int(query["timeoutSeconds"]) if query.get("timeoutSeconds") else None
    initial = is_true(query["sendInitialEvents"]) if "sendInitialEvents" in query else None
    text, match = query.get("resourceVersion", ""), query.get("resourceVersionMatch", "")
    token = query.get("continue", "")
    errors = (_check_watch if watch else _check_list)(text, match, token, initial=initial)
    if errors:
        raise _invalid("ListOptions", errors)
    if token and text and text != "0":
        raise BadRequestError("specifying resource version is not allowed when using continue")
    return ListOptions(
        label_selector=_label_selector(query.get("labelSelector", "")),
        field_selector=_field_selector(query.get("fieldSelector", "")),
        limit=max(limit, 0),
        continue_token=token,
        revision=_list_revision(text, watch=watch),
        revision_match=match,
        watch=watch,
        allow_bookmarks=is_true(query.get("allowWatchBookmarks")),
        send_initial_events=initial,
        timeout_seconds=timeout,
    )


def _check_list(  # noqa: PLR0911 - one return for each rule
    text: str, match: str, token: str, *, initial: bool | None
) -> FieldErrors:
    path = _ROOT.child("resourceVersionMatch")
    if initial is not None:
        return [forbidden(_ROOT.child("sendInitialEvents"), "sendInitialEvents is forbidden for list")]
    if not match:
        return []
    if not text:
        return [forbidden(path, "resourceVersionMatch is forbidden unless resourceVersion is provided")]
    if token:
        return [forbidden(path, "resourceVersionMatch is forbidden when continue is provided")]
    if match not in ("Exact", "NotOlderThan"):
        return [not_supported(path, match, ["Exact", "NotOlderThan", ""])]
    if match == "Exact" and text == "0":
        return [forbidden(path, 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"')]
    return []


def _check_watch(text: str, match: str, token: str, *, initial: bool | None) -> FieldErrors:
    path = _ROOT.child("resourceVersionMatch")
    if initial is not None:
        if match != "NotOlderThan":
            return [forbidden(path, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")]
    elif match:
        return [forbidden(path, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")]
    if token:
        return [forbidden(_ROOT.child("continue"), "continue is forbidden for watch")]
    return []


def _list_revision(text: str, *, watch: bool) -> int | None:
    if not text:
        return None
    if _UINT.fullmatch(text):
        return _revision_of(text)
    complaint = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
    if watch:
        raise UnparsableVersionError(complaint)
    raise BadRequestError(f"invalid resource version: {complaint}")


def _label_selector(text: str) -> LabelSelector | None:
    if not text:
        return None
    try:
        return LabelSelector.parse(text)
    except SelectorError as error:
        raise BadRequestError(str(error)) from error


def _field_selector(text: str) -> FieldSelector | None:
    if not text:
        return None
    try:
        return FieldSelector.parse(text)
    except SelectorError as error:
        raise BadRequestError(str(error)) from error


# The revision in a token that continues a list at whatever revision is the newest.
ANY_REVISION: Final = -1


def encode_continue(revision: int, start: str) -> str:
    """Return a continue token: the revision of the first page and the last key returned, relative to the prefix."""
    token = orjson.dumps({"v": "meta.k8s.io/v1", "rv": revision, "start": start + "\0"})
    return base64.urlsafe_b64encode(token).rstrip(b"=").decode()


def decode_continue(token: str) -> tuple[int, str]:
    """Decode a continue token; raise BadRequestError if it is invalid."""
    try:
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        value = orjson.loads(raw)
        revision, start = int(value["rv"]), str(value["start"])
        if not ANY_REVISION <= revision <= _INT64_MAX:
            raise ValueError("revision out of range")  # noqa: TRY301 - one message for every forged token
    except (binascii.Error, ValueError, KeyError, TypeError, OverflowError) as error:
        raise BadRequestError(f"invalid continue token: continue key is not valid: {error}") from error
    if value.get("v") != "meta.k8s.io/v1" or not start.startswith("/") or ".." in start:
        raise BadRequestError("invalid continue token: continue key is not valid: unrecognized token")
    return revision, start.rstrip("\0")
