"""Whether a request that is repeated for ever succeeds: logged when that changes, and shown by health checks."""

from __future__ import annotations

import logging
from typing import Any, Final

from dray.api.errors import APIError
from dray.client.interface import Resource
from dray.runtime.logs import fields

_FORBIDDEN: Final = 403


def missing_right(verb: str, resource: Resource[Any], namespace: str = "") -> str:
    """Return which right a request needs, in the words of Kubernetes' refusals."""
    scope = f'in the namespace "{namespace}"' if namespace and resource.namespaced else "at the cluster scope"
    return f'cannot {verb} resource "{resource.plural}" in API group "{resource.group}" {scope}'


def describe_failure(error: APIError, verb: str, resource: Resource[Any] | None, namespace: str = "") -> str:
    """Return why a request failed; a refusal names the missing right even if the server, or a proxy, does not."""
    message = error.message or error.reason or str(error.code)
    if error.code != _FORBIDDEN or resource is None or f"cannot {verb} resource" in message:
        return message
    return f"{message}: {missing_right(verb, resource, namespace)}"


class RequestState:
    """The state of one repeated request, or of several that fail together such as list and watch.

    A failure is logged when it begins, and when another verb or status code follows; the attempts in between are not.
    """

    def __init__(
        self, log: logging.Logger, subject: str, resource: Resource[Any] | None = None, namespace: str = ""
    ) -> None:
        self._log = log
        # What log lines name.
        self._subject = subject
        self._resource = resource
        self._namespace = namespace
        # Why the latest attempt failed; None if it succeeded, or if there was none.
        self.failure: str | None = None
        # Whether an attempt has succeeded.
        self.has_succeeded = False
        self._logged: tuple[str, int] | None = None

    def health(self, unknown: str) -> str | None:
        """Return why the request fails, None if it succeeds, `unknown` before the first attempt; a health check."""
        return self.failure or (None if self.has_succeeded else unknown)

    def failed(self, verb: str, error: APIError) -> None:
        """Record a failed attempt, after which there will be another."""
        self.failure = describe_failure(error, verb, self._resource, self._namespace)
        described = fields(subject=self._subject, reason=error.reason, error=self.failure)
        if self._logged != (verb, error.code):
            self._logged = (verb, error.code)
            self._log.warning("%s failed, will be retried", verb, extra=described)

    def succeeded(self) -> None:
        """Record a successful attempt."""
        self.has_succeeded = True
        if self.failure is not None:
            self.failure = None
            self._logged = None
            self._log.info("requests succeed again", extra=fields(subject=self._subject))
