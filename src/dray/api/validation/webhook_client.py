"""Where webhooks are called: URLs and references to Services, of admission webhooks and of conversion webhooks."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, invalid, quote, required
from dray.api.names import dns1123_subdomain

_FORM: Final = "; desired format: https://host[/path]"
_PORT_MAX: Final = 65535
# Python removes some of these silently.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^][\s\"<>\\^`{|}:]*)(:[0-9]*)?")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2}).{0,2}")


def validate_webhook_client(config: Document, path: Path) -> FieldErrors:
    """Validate a client configuration, which has either a URL or a Service."""
    url, service = config.get("url"), config.get("service")
    if (url is None) == (service is None):
        return [required(path, "exactly one of url or service is required")]
    if url is not None:
        return _validate_url(url, path.child("url"))
    return _validate_service(service or {}, path.child("service"))


def _validate_url(url: str, path: Path) -> FieldErrors:
    try:
        parts = _split(url)
    except ValueError as error:
        return [required(path, f"url must be a valid URL: parse {quote(url)}: {error}{_FORM}")]
    errors: FieldErrors = []
    if parts.scheme != "https":
        errors.append(invalid(path, parts.scheme, f"'https' is the only allowed URL scheme{_FORM}"))
    if not parts.hostname:
        errors.append(invalid(path, "", f"host must be specified{_FORM}"))
    user, has_user, _ = parts.netloc.rpartition("@")
    if has_user:
        errors.append(invalid(path, user, "user information is not permitted in the URL"))
    if parts.fragment:
        errors.append(invalid(path, parts.fragment, "fragments are not permitted in the URL"))
    if parts.query:
        errors.append(invalid(path, parts.query, "query parameters are not permitted in the URL"))
    return errors


def _split(url: str) -> SplitResult:
    """Return the parts of a URL; raises `ValueError` with Go's texts, which is stricter than Python."""
    if _CONTROL.search(url):
        raise ValueError("net/url: invalid control character in URL")
    if url.startswith(" "):
        raise ValueError("first path segment in URL cannot contain colon")
    if found := _BAD_ESCAPE.search(url):
        raise ValueError(f"invalid URL escape {quote(found[0])}")
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    if _HOST.fullmatch(host) is None:
        raise ValueError(f"invalid host {quote(host)}")
    if parts.port is not None and not 0 < parts.port <= _PORT_MAX:
        raise ValueError(f"invalid port {quote(str(parts.port))} after host")
    return parts


def _validate_service(service: Document, path: Path) -> FieldErrors:
    errors = [
        required(path.child(field), f"service {field} is required")
        for field in ("name", "namespace")
        if not service.get(field)
    ]
    port = service.get("port", 0)
    if not 0 < port <= _PORT_MAX:
        text = "port is not valid: must be between 1 and 65535, inclusive"
        errors.append(invalid(path.child("port"), port, text))
    return errors + _validate_path(service.get("path") or "/", path.child("path"))


def _validate_path(text: str, path: Path) -> FieldErrors:
    if text == "/":
        return []
    errors = [] if text.startswith("/") else [invalid(path, text, "must start with a '/'")]
    for i, segment in enumerate(text[1:].removesuffix("/").split("/")):
        if not segment:
            errors.append(invalid(path, text, f"segment[{i}] may not be empty"))
        else:
            errors += [invalid(path, text, f"segment[{i}]: {problem}") for problem in dns1123_subdomain(segment)]
    return errors
