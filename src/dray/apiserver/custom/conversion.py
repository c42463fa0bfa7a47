"""Conversion of custom resources by webhooks.

Requests work in the version that they name; only a store converts: what it reads to that version, and what it writes to
the version in which objects are stored. Everything above it is the same as without a webhook.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final, Self

import msgspec
import orjson

from dray.api.document import Document, GroupVersion
from dray.api.raw_numbers import load_stored
from dray.apiserver.admission.webhook_client import WebhookCallError, WebhookClient
from dray.apiserver.admission.webhooks import WebhookTarget
from dray.apiserver.custom.conversion_review import (
    InvalidReviewError,
    parse_review,
    review_body,
    review_version,
    shown_kind,
)
from dray.apiserver.custom.schema import CompiledSchema
from dray.apiserver.endpoint import ConversionFailedError
from dray.apiserver.metadata import random_uid
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics, exponential_buckets
from dray.store.interface import (
    NO_GUARDS,
    AsynchronousCommit,
    Entry,
    Event,
    Page,
    Store,
    Watch,
)

# kube-apiserver's.
_TIMEOUT_SECONDS: Final = 30
_BUCKETS: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 45, 60)
# Objects of one review, so that its answer stays below the limit of one.
_OBJECTS_MAX: Final = 256
_REVIEW_BYTES_MAX: Final = 1024 * 1024
# Total size of the cached values of one definition, both forms counted.
_CACHE_BYTES_MAX: Final = 16 * 1024 * 1024


class ConversionMetrics:
    """Counts and times conversions, with kube-apiserver's names."""

    def __init__(self, metrics: Metrics) -> None:
        self._requests = metrics.counter(
            "apiserver_conversion_webhook_request_total",
            "Calls of conversion webhooks, by result and type of failure.",
            ("result", "failure_type"),
        )
        self._durations = metrics.histogram(
            "apiserver_conversion_webhook_duration_seconds",
            "How long calls of conversion webhooks took, by result and type of failure.",
            ("result", "failure_type"),
            _BUCKETS,
        )
        self._conversions = metrics.histogram(
            "apiserver_crd_conversion_webhook_duration_seconds",
            "How long conversions took, by definition, versions and whether they succeeded.",
            ("crd_name", "from_version", "to_version", "succeeded"),
            exponential_buckets(start=0.001, factor=2, count=15),
        )

    def called(self, name: str, versions: tuple[str, str], seconds: float, failure: str) -> None:
        """Record a call; `failure` is its type, empty for a success."""
        result = "failure" if failure else "success"
        self._requests.labels(result, failure).inc()
        self._durations.labels(result, failure).observe(seconds)
        self._conversions.labels(name, *versions, "false" if failure else "true").observe(seconds)


class ConversionParts(msgspec.Struct, frozen=True):
    """What conversions need."""

    client: WebhookClient
    metrics: ConversionMetrics
    clock: Clock
    random: random.Random


class ConversionWebhook:
    """Converts the objects of one definition, as its spec is; another spec makes another one.

    What is converted has the defaults of the schema of its version, and gets only the fields of the other one.
    """

    def __init__(self, definition: Document, schemas: Mapping[str, CompiledSchema], parts: ConversionParts) -> None:
        spec = definition["spec"]
        webhook = spec["conversion"]["webhook"]
        self._name: str = definition["metadata"]["name"]
        self._parts = parts
        self._schemas = schemas
        self._target = WebhookTarget.of(webhook.get("clientConfig") or {})
        self._review_version = review_version(webhook.get("conversionReviewVersions") or ())
        storage = next(item["name"] for item in spec["versions"] if item.get("storage"))
        self.storage: Final = GroupVersion(spec["group"], storage)
        self._kind: str = spec["names"]["kind"]
        # By value and wanted version, least recently used first: what a revision of an object is in another version.
        # The same value is always converted to the same one, so that nothing is ever invalidated.
        self._known: OrderedDict[tuple[bytes, str], bytes] = OrderedDict()
        self._bytes = 0
        # Reviews that are under way, so that all watches wait for the same one; the result is the failure, if any.
        self._pending: dict[tuple[bytes, str], asyncio.Future[ConversionFailedError | None]] = {}

    def on(self, store: Store, api_version: str) -> ConvertingStore:
        """Return the store for requests in a version."""
        return ConvertingStore(store, self, api_version)

    async def convert(self, documents: Sequence[Document], api_version: str) -> list[Document]:
        """Return the documents in a version; raises `ConversionFailedError`."""
        values = [orjson.dumps(document) for document in documents]
        return [orjson.loads(value) for value in await self.convert_values(values, api_version)]

    async def convert_value(self, value: bytes, api_version: str) -> bytes:
        """Return a stored value in a version; raises `ConversionFailedError`."""
        return (await self.convert_values((value,), api_version))[0]

    async def convert_values(self, values: Sequence[bytes], api_version: str) -> Sequence[bytes]:
        """Return stored values in a version; raises `ConversionFailedError`."""
        head = b'{"kind":%b,"apiVersion":%b,' % (orjson.dumps(self._kind), orjson.dumps(api_version))
        others = dict.fromkeys(value for value in values if not value.startswith(head))
        if not others:
            return values
        found = await self._find(list(others), api_version)
        return [found.get(value, value) for value in values]

    async def _find(self, values: Sequence[bytes], api_version: str) -> dict[bytes, bytes]:
        """Return conversions that are known, under way, or made now."""
        found: dict[bytes, bytes] = {}
        waiting, missing = [], []
        for value in values:
            key = (value, api_version)
            if key in self._known:
                self._known.move_to_end(key)
                found[value] = self._known[key]
            elif key in self._pending:
                waiting.append((value, self._pending[key]))
            else:
                missing.append(value)
        for batch in _batches(missing):
            found.update(await self._convert_batch(batch, api_version))
        for value, future in waiting:
            failure = await asyncio.shield(future)
            if failure is not None:
                raise ConversionFailedError(str(failure))
            # Known now, unless the request that made it was cancelled.
            found.update(await self._find((value,), api_version))
        return found

    async def _convert_batch(self, values: Sequence[bytes], api_version: str) -> dict[bytes, bytes]:
        future: asyncio.Future[ConversionFailedError | None] = asyncio.get_running_loop().create_future()
        self._pending.update(((value, api_version), future) for value in values)
        failure = None
        try:
            made = await self._review(values, api_version)
        except ConversionFailedError as error:
            failure = error
            raise
        finally:
            for value in values:
                del self._pending[value, api_version]
            future.set_result(failure)
        for value, converted in made.items():
            self._remember((value, api_version), converted)
        return made

    def _remember(self, key: tuple[bytes, str], converted: bytes) -> None:
        self._known[key] = converted
        self._bytes += len(key[0]) + len(converted)
        while self._bytes > _CACHE_BYTES_MAX and len(self._known) > 1:
            (value, _), oldest = self._known.popitem(last=False)
            self._bytes -= len(value) + len(oldest)

    async def _review(self, values: Sequence[bytes], api_version: str) -> dict[bytes, bytes]:
        """Call the webhook for some values."""
        parts = self._parts
        documents = [load_stored(value) for value in values]
        for document in documents:
            # Objects may be stored in a version that the definition no longer has.
            if schema := self._schemas.get(_version(document["apiVersion"])):
                schema.complete_stored(document)
        head = f"conversion webhook for {shown_kind(documents[0])}"
        if not self._review_version:
            raise ConversionFailedError("no supported conversion review versions")
        uid, started, failure = random_uid(parts.random), parts.clock.monotonic(), ""
        try:
            body = review_body(uid, api_version, documents, self._review_version)
            answer = await parts.client.call(self._target, _TIMEOUT_SECONDS, body)
            converted = parse_review(answer, uid, api_version, documents, self._review_version)
        except WebhookCallError as error:
            failure = "conversion_webhook_call_failure"
            raise ConversionFailedError(f"{head} failed: {error}") from None
        except InvalidReviewError as error:
            failure = error.failure
            raise ConversionFailedError(f"{head}{error}") from None
        finally:
            versions = (_version(documents[0]["apiVersion"]), _version(api_version))
            parts.metrics.called(self._name, versions, parts.clock.monotonic() - started, failure)
        for document in converted:
            self._schemas[_version(api_version)].pruner.prune(document)
        return {value: orjson.dumps(document) for value, document in zip(values, converted, strict=True)}


def _version(api_version: str) -> str:
    return GroupVersion.parse(api_version).version


def _batches(values: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Split values into those of one review each."""
    batch: list[bytes] = []
    size = 0
    for value in values:
        if batch and (len(batch) == _OBJECTS_MAX or size + len(value) > _REVIEW_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(value)
        size += len(value)
    if batch:
        yield batch


class ConvertingStore:
    """A store in which the objects of one definition have the version of a request."""

    def __init__(self, store: Store, conversion: ConversionWebhook, api_version: str) -> None:
        self._store = store
        self._conversion = conversion
        self._api_version = api_version

    async def get(self, key: str) -> Entry | None:
        """Return the newest entry of the key, or None."""
        entry = await self._store.get(key)
        return None if entry is None else (await self._shown((entry,)))[0]

    async def create(self, key: str, value: bytes) -> Entry:
        """Write a key that must not exist."""
        stored = await self._store.create(key, await self._stored(value))
        return (await self._shown((stored,)))[0]

    async def update(
        self, key: str, value: bytes, *, expected_revision: int, guards: Mapping[str, int] = NO_GUARDS
    ) -> Entry:
        """Replace the value if the key is still at `expected_revision`."""
        converted = await self._stored(value)
        stored = await self._store.update(key, converted, expected_revision=expected_revision, guards=guards)
        return (await self._shown((stored,)))[0]

    async def list_page(self, prefix: str, *, limit: int = 0, start_after: str = "", revision: int = 0) -> Page:
        """Return entries whose keys begin with `prefix`."""
        page = await self._store.list_page(prefix, limit=limit, start_after=start_after, revision=revision)
        return Page(tuple(await self._shown(page.entries)), page.revision, page.remaining)

    async def watch(self, prefix: str, *, after_revision: int) -> Watch:
        """Watch the keys under `prefix`."""
        return _ConvertingWatch(await self._store.watch(prefix, after_revision=after_revision), self._shown)

    async def _stored(self, value: bytes) -> bytes:
        return await self._conversion.convert_value(value, self._conversion.storage.api_version)

    async def _shown(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Return entries in the version of the request."""
        values = [entry.value for entry in entries]
        converted = await self._conversion.convert_values(values, self._api_version)
        if converted is values:
            return entries
        return [
            entry if entry.value is value else Entry(entry.key, value, entry.revision, entry.create_revision)
            for entry, value in zip(entries, converted, strict=True)
        ]

    def with_asynchronous_commit(self) -> AsynchronousCommit | None:
        """Return None: it is a view already."""
        return None

    # What follows is no different from the store.

    @property
    def shared(self) -> bool:
        """Whether other processes may write to it at the same time."""
        return self._store.shared

    async def revision(self) -> int:
        """Return the newest committed revision."""
        return await self._store.revision()

    async def compacted_revision(self) -> int:
        """Return the oldest revision that can be listed or watched from."""
        return await self._store.compacted_revision()

    async def delete(self, key: str, *, expected_revision: int) -> Entry:
        """Remove the key if it is still at `expected_revision`."""
        return await self._store.delete(key, expected_revision=expected_revision)

    async def count(self, prefix: str) -> int:
        """Return the number of keys that begin with the prefix."""
        return await self._store.count(prefix)

    async def compact(self, revision: int) -> None:
        """Remove the history before `revision`."""
        await self._store.compact(revision)

    async def maintain(self, now_seconds: float) -> None:
        """Compact as the policy demands."""
        await self._store.maintain(now_seconds)

    async def check_health(self, timeout_seconds: float) -> None:
        """Return when the back end has answered."""
        await self._store.check_health(timeout_seconds)

    async def check_ready(self, timeout_seconds: float) -> None:
        """Like `check_health`; raise also while writes fail."""
        await self._store.check_ready(timeout_seconds)

    async def close(self) -> None:
        """Leave the store open: it belongs to somebody else."""


class _ConvertingWatch:
    """A watch whose entries are converted; a failed conversion ends it."""

    def __init__(self, watch: Watch, show: Callable[[Sequence[Entry]], Awaitable[Sequence[Entry]]]) -> None:
        self._watch = watch
        self._batches = aiter(watch)
        self._show = show
        # Up to where the events were delivered: the watch may be further.
        self._progress = watch.progress

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[tuple[Event, ...]]:
        return self

    async def __anext__(self) -> tuple[Event, ...]:
        batch = await anext(self._batches)
        entries = [entry for event in batch for entry in (event.entry, event.previous) if entry is not None]
        shown = iter(await self._show(entries))
        converted = tuple(
            Event(event.type, next(shown), None if event.previous is None else next(shown)) for event in batch
        )
        self._progress = self._watch.progress
        return converted

    @property
    def progress(self) -> int:
        """The revision up to which all events have been delivered."""
        return self._progress

    def wake(self) -> None:
        """Make the iteration yield at once."""
        self._watch.wake()

    async def aclose(self) -> None:
        """End the watch."""
        await self._watch.aclose()
