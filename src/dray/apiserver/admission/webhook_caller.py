"""One call of one webhook: whether it is about a write, the review, and what follows from answers and failures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dray.api.document import Document
from dray.api.errors import APIError, BadRequestError, ForbiddenError, InternalError
from dray.apiserver.admission.conditions import ConditionsError
from dray.apiserver.admission.matching import Equivalents, own_labels
from dray.apiserver.admission.plugin import AdmissionAttributes
from dray.apiserver.admission.review import review_request, shown_name
from dray.apiserver.admission.validating_admission_policy import Authorize, authorizer_value
from dray.apiserver.admission.webhook_client import WebhookCallError, WebhookClient
from dray.apiserver.admission.webhook_metrics import WebhookMetrics
from dray.apiserver.admission.webhook_review import Answer, InvalidAnswerError, denial, parse_answer, review_body
from dray.apiserver.admission.webhooks import Webhook
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.metadata import random_uid
from dray.apiserver.object_cache import NAMESPACES
from dray.apiserver.object_lookup import ObjectLookup
from dray.cel.admission import LazyValues, namespace_value
from dray.cel.errors import CELError
from dray.lib.clock import Clock

_OK: Final = 200


class Invocation(msgspec.Struct, frozen=True):
    """A webhook that is about a write, and the endpoint by which it matched."""

    webhook: Webhook
    endpoint: Endpoint
    # The endpoint of the request.
    requested: Endpoint


class WebhookParts(msgspec.Struct, frozen=True):
    """What calls of webhooks need."""

    client: WebhookClient
    equivalents: Equivalents
    objects: ObjectLookup
    authorize: Authorize
    metrics: WebhookMetrics
    clock: Clock
    random: Any


class WebhookCaller:
    """Calls webhooks of one type: `admit` for mutating ones, `validating` for the others, as in metrics."""

    def __init__(self, parts: WebhookParts, kind: str) -> None:
        self._parts = parts
        self._kind = kind

    async def matching(self, candidates: tuple[Webhook, ...], attributes: AdmissionAttributes) -> list[Invocation]:
        """Return the webhooks that are about a write, without regard to their conditions."""
        equivalents = self._parts.equivalents.of(attributes.resource, attributes.version)
        if not equivalents:
            return []
        namespace = await self._namespace(attributes)

        def labels() -> Mapping[str, str] | None:
            if attributes.resource == NAMESPACES:
                return own_labels(attributes)
            if not attributes.namespace:
                return None
            return ((namespace or {}).get("metadata") or {}).get("labels") or {}

        found = []
        for webhook in candidates:
            endpoint = webhook.match.find(attributes, equivalents, labels)
            if endpoint is not None:
                found.append(Invocation(webhook, endpoint, equivalents[0]))
        return found

    async def _namespace(self, attributes: AdmissionAttributes) -> Document | None:
        if not attributes.namespace or attributes.resource == NAMESPACES:
            return None
        return await self._parts.objects.namespace(attributes.namespace)

    async def call(
        self,
        invocation: Invocation,
        attributes: AdmissionAttributes,
        new: Document | None,
        old: Document | None,
        *,
        place: str = "",
    ) -> Answer | None:
        """Call a webhook; None if its conditions do not hold, or if it failed and failures are ignored.

        Raises what the client gets if the webhook denies the write, or failed and failures are not ignored. `place` is
        the end of keys of audit annotations.
        """
        webhook, endpoint = invocation.webhook, invocation.endpoint
        request = review_request(attributes, endpoint, invocation.requested)
        if not await self._conditions_hold(webhook, attributes, request, new, old):
            return None
        if attributes.dry_run and not webhook.supports_dry_run:
            raise BadRequestError(f'admission webhook "{webhook.name}" does not support dry run')
        answer = await self._send(webhook, attributes, request, new, old, place)
        if answer is None:
            return None
        attributes.warnings.extend(answer.warnings)
        if attributes.audit is not None:
            attributes.audit.update({f"{webhook.name}/{key}": value for key, value in answer.annotations.items()})
        if not answer.allowed:
            error = denial(webhook.name, answer.status)
            self._reject(webhook, attributes, "no_error", error.code)
            raise error
        return answer

    async def _conditions_hold(
        self,
        webhook: Webhook,
        attributes: AdmissionAttributes,
        request: Document,
        new: Document | None,
        old: Document | None,
    ) -> bool:
        if not webhook.has_conditions:
            return True
        namespace = await self._namespace(attributes)
        values = LazyValues(
            {
                "object": lambda: new,
                "oldObject": lambda: old,
                "request": lambda: request,
                "namespaceObject": lambda: namespace_value(namespace),
                "authorizer": lambda: authorizer_value(attributes, self._parts.authorize),
            }
        )
        try:
            return webhook.conditions().hold(values)
        except (ConditionsError, CELError) as error:
            if not webhook.fails_closed:
                return False
            raise ForbiddenError(attributes.resource, shown_name(attributes), str(error)) from None

    async def _send(
        self,
        webhook: Webhook,
        attributes: AdmissionAttributes,
        request: Document,
        new: Document | None,
        old: Document | None,
        place: str,
    ) -> Answer | None:
        uid = random_uid(self._parts.random)
        started = self._parts.clock.monotonic()
        try:
            body = review_body(request, uid, new, old, webhook.version)
            raw = await self._parts.client.call(webhook.target, webhook.timeout_seconds, body)
        except WebhookCallError as error:
            self._failed(webhook, attributes, f"failed to call webhook: {error}", place)
            return None
        try:
            answer = parse_answer(raw, uid, webhook.version, mutating=self._kind == "admit")
        except InvalidAnswerError as error:
            self._failed(webhook, attributes, f"received invalid webhook response: {error}", place)
            return None
        seconds = self._parts.clock.monotonic() - started
        operation = attributes.operation.value
        self._parts.metrics.called(webhook.name, self._kind, operation, seconds, code=_OK, rejected=not answer.allowed)
        return answer

    def _failed(self, webhook: Webhook, attributes: AdmissionAttributes, text: str, place: str) -> None:
        if webhook.fails_closed:
            self._reject(webhook, attributes, "calling_webhook_error", 0)
            raise InternalError(f'failed calling webhook "{webhook.name}": {text}')
        self._parts.metrics.failed_open(webhook.name, self._kind)
        if attributes.audit is not None:
            stage = "mutation" if self._kind == "admit" else "validating"
            attributes.audit[f"failed-open.{stage}.webhook.admission.k8s.io/{place}"] = webhook.name

    def internal_error(self, webhook: Webhook, attributes: AdmissionAttributes, error: Exception | str) -> APIError:
        """Return what the client gets for an answer that cannot be followed, whatever the failure policy says."""
        self._reject(webhook, attributes, "apiserver_internal_error", 500)
        return InternalError(str(error))

    def _reject(self, webhook: Webhook, attributes: AdmissionAttributes, error: str, code: int) -> None:
        self._parts.metrics.rejected(webhook.name, self._kind, attributes.operation.value, error=error, code=code)
