"""get and list: consistent reads, paged, at the revision the client asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from dray.api import errors
from dray.api.errors import APIError, ExpiredError, NotFoundError
from dray.apiserver.call import Call, ListResult, ObjectResult, Pacer
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.malformed import unless_malformed
from dray.apiserver.options import (
    ANY_REVISION,
    ListOptions,
    decode_continue,
    encode_continue,
    parse_list_options,
    parse_revision,
)
from dray.apiserver.selection import Selection, select
from dray.store.interface import Entry, FutureRevisionError, Page, RevisionCompactedError, Store

# The time that kube-apiserver waits for a future revision.
FUTURE_REVISION_WAIT_SECONDS: Final = 3.0
# Entries read from the store at a time while a selector looks for enough matches.
_SCAN_PAGE: Final = 500
# Larger pages are split: a server may return fewer objects than requested, with a continue token.
PAGE_OBJECTS_MAX: Final = 10_000
_POLL_SECONDS: Final = 0.02


class GetHandler:
    """Reads objects; one for the whole server."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, call: Call, endpoint: Endpoint) -> ObjectResult:
        """Return one object."""
        wanted = call.query.get("resourceVersion")
        if wanted and wanted != "0":
            await self.wait_for(parse_revision(wanted))
        entry = await self._store.get(endpoint.key(call.info.namespace, call.info.name))
        if entry is None:
            raise NotFoundError(endpoint.resource, call.info.name)
        return ObjectResult(endpoint, entry)

    async def list(self, call: Call, endpoint: Endpoint) -> ListResult:
        """Return a list."""
        options = parse_list_options(call.query, watch=False)
        return await self.list_selected(endpoint, call.info.namespace, options, name=call.info.name, pacer=call.pacer)

    async def list_selected(
        self, endpoint: Endpoint, namespace: str, options: ListOptions, *, name: str = "", pacer: Pacer | None = None
    ) -> ListResult:
        """Return a list by parsed options."""
        selection = select(endpoint, namespace, name, options)
        if selection.is_single:
            return await self._list_single(endpoint, selection, options)
        limit, revision, start = min(options.limit, PAGE_OBJECTS_MAX), 0, ""
        if options.continue_token:
            revision, relative = decode_continue(options.continue_token)
            # An inconsistent list goes on in the newest state.
            revision = max(revision, 0)
            start = selection.prefix[:-1] + relative
        elif options.revision is not None:
            limit, revision = await self._revision_of(options, limit)
        try:
            if selection.matches is None:
                return await self._collect(endpoint, selection.prefix, limit, revision, start)
            return await self._collect_matching(endpoint, selection, limit, revision, start, pacer)
        except RevisionCompactedError as error:
            raise _expired(options) from error
        except FutureRevisionError as error:
            raise too_large(error.requested, error.current) from error

    async def _revision_of(self, options: ListOptions, limit: int) -> tuple[int, int]:
        """Return the limit and the exact revision (0: newest) for resourceVersion and resourceVersionMatch."""
        wanted = options.revision or 0
        if wanted == 0:
            # Any version is acceptable: served from the newest state, without pages.
            return 0, 0
        if options.revision_match == "Exact" or (not options.revision_match and limit):
            return limit, wanted
        await self.wait_for(wanted)
        return limit, 0

    async def _list_single(self, endpoint: Endpoint, selection: Selection, options: ListOptions) -> ListResult:
        if options.revision:
            await self.wait_for(options.revision)
        # One read, so that the revision is that of the entry: a watch from it would miss a change in between. The
        # key itself comes before all others that begin with it.
        page = await self._store.list_page(selection.prefix, limit=1)
        found = [entry for entry in page.entries if entry.key == selection.prefix]
        return ListResult(endpoint, [entry for entry in found if _matches(endpoint, selection, entry)], page.revision)

    async def _collect(self, endpoint: Endpoint, prefix: str, limit: int, revision: int, start: str) -> ListResult:
        page = await self._store.list_page(prefix, limit=limit, start_after=start, revision=revision)
        more = page.remaining > 0
        token = _token(prefix, page.entries, page.revision) if more else ""
        return ListResult(endpoint, page.entries, page.revision, token, page.remaining if more else None)

    async def _collect_matching(
        self,
        endpoint: Endpoint,
        selection: Selection,
        limit: int,
        revision: int,
        start: str,
        pacer: Pacer | None,
    ) -> ListResult:
        found: list[Entry] = []
        while True:
            size = _SCAN_PAGE if limit else 0
            page: Page = await self._store.list_page(selection.prefix, limit=size, start_after=start, revision=revision)
            revision = page.revision
            if pacer is not None:
                pacer.start()
            for position, entry in enumerate(page.entries):
                if pacer is not None and pacer.is_due():
                    await pacer.pause()
                if not _matches(endpoint, selection, entry):
                    continue
                found.append(entry)
                if limit and len(found) == limit:
                    more = page.remaining > 0 or position + 1 < len(page.entries)
                    token = _token(selection.prefix, found, revision) if more else ""
                    return ListResult(endpoint, found, revision, token)
            if page.remaining == 0:
                return ListResult(endpoint, found, revision)
            start = page.entries[-1].key

    async def wait_for(self, revision: int) -> None:
        """Wait until the store has reached the revision; raise "Too large resource version" after a timeout."""
        current = await self._store.revision()
        deadline = asyncio.get_running_loop().time() + FUTURE_REVISION_WAIT_SECONDS
        while current < revision:
            if asyncio.get_running_loop().time() >= deadline:
                raise too_large(revision, current)
            await asyncio.sleep(_POLL_SECONDS)
            current = await self._store.revision()


def _matches(endpoint: Endpoint, selection: Selection, entry: Entry) -> bool:
    matches = selection.matches
    if matches is None:
        return True
    # What a selector cannot read it does not select.
    return bool(unless_malformed(lambda entry: matches(endpoint.decode(entry.value, entry.revision)), entry))


def _token(prefix: str, entries: Sequence[Entry], revision: int) -> str:
    return encode_continue(revision, "/" + entries[-1].key.removeprefix(prefix))


def _expired(options: ListOptions) -> APIError:
    if options.continue_token:
        _, start = decode_continue(options.continue_token)
        return ExpiredError(
            "The provided continue parameter is too old to display a consistent list result. You can start a new "
            "list without the continue parameter, or use the continue token in this response to retrieve the "
            "remainder of the results. Continuing with the provided token results in an inconsistent list - objects "
            "that were created, modified, or deleted between the time the first chunk was returned and now may show "
            "up in the list.",
            continue_token=encode_continue(ANY_REVISION, start),
        )
    return ExpiredError(f"The resourceVersion for the provided list is too old: {options.revision}")


def too_large(requested: int, current: int) -> APIError:
    """Return the error of a revision in the future."""
    error = errors.RequestTimeoutError(
        f"Timeout: Too large resource version: {requested}, current: {current}",
        details={"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]},
    )
    error.retry_after_seconds = 1
    return error
