"""ValidatingAdmissionWebhook: webhooks that only check, all at once."""

from __future__ import annotations

from dray.api.errors import APIError
from dray.apiserver.admission.match_cache import ConfiguredPlugin
from dray.apiserver.admission.plugin import AdmissionAttributes, Undo
from dray.apiserver.admission.review import object_for
from dray.apiserver.admission.webhook_caller import Invocation, WebhookCaller
from dray.apiserver.admission.webhooks import Webhook, WebhookIndex
from dray.runtime.tasks import TaskGroup


class ValidatingAdmissionWebhook(ConfiguredPlugin[Webhook]):
    """Calls validating webhooks; the first refusal, in the order in which answers arrive, is the client's."""

    name = "ValidatingAdmissionWebhook"

    def __init__(self, index: WebhookIndex, caller: WebhookCaller) -> None:
        super().__init__(index.matches)
        self._caller = caller

    async def validate(self, attributes: AdmissionAttributes) -> Undo | None:
        """Refuse a write that a webhook denies."""
        candidates = self._matches.candidates(attributes)
        if candidates:
            await self._call_all(candidates, attributes)
        return None

    async def _call_all(self, candidates: tuple[Webhook, ...], attributes: AdmissionAttributes) -> None:
        invocations = await self._caller.matching(candidates, attributes)
        errors: list[APIError] = []

        async def call(index: int, invocation: Invocation) -> None:
            new = await object_for(attributes.object, attributes, invocation.endpoint)
            old = await object_for(attributes.old_object, attributes, invocation.endpoint)
            try:
                await self._caller.call(invocation, attributes, new, old, place=f"round_0_index_{index}")
            except APIError as error:
                errors.append(error)

        if len(invocations) == 1:
            await call(0, invocations[0])
        elif invocations:
            async with TaskGroup("validating webhooks") as group:
                for index, invocation in enumerate(invocations):
                    group.spawn(call(index, invocation), f"webhook {invocation.webhook.name}")
                await group.wait()
        if errors:
            raise errors[0]
