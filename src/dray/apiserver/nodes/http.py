"""Asks nodes for the output of containers, over HTTPS with a client certificate."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Final

from dray.api.document import Document
from dray.api.errors import BadRequestError, InternalError, PathNotFoundError
from dray.apiserver.authentication.files import KubeletTLS
from dray.apiserver.nodes.addresses import NodeAddress, node_address

# Loaded with the first log that is asked for: the client is large, and many servers never need it.
if TYPE_CHECKING:
    import aiohttp

CONNECT_SECONDS_MAX: Final = 10.0
MESSAGE_BYTES_MAX: Final = 10_000
_FAILURES: Final = 400


class NodeLogs:
    """Implements `LogSource`; one for the whole server."""

    def __init__(self, tls: KubeletTLS) -> None:
        self._tls = tls
        self._streams: set[aiohttp.ClientSession] = set()

    async def close(self) -> None:
        """End all streams."""
        for session in tuple(self._streams):
            await session.close()

    async def open(self, node: Document, place: str, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """Start reading a log; refusals come as errors before the first byte."""
        import aiohttp

        address = node_address(node)
        url = f"{address.url}/containerLogs/{place}"
        session = self._session(address)
        try:
            # The connector compares the fingerprint of a pinned node, if any; the context shows our certificate.
            tls = self._tls.pinned if address.fingerprint else self._tls.certified
            response = await session.get(url, params=query, ssl=tls)
            await _check(response)
        except (aiohttp.ClientError, OSError) as error:
            await self._end(session)
            raise InternalError(f'Get "{url}": {error}') from error
        except BaseException:
            await self._end(session)
            raise
        return self._chunks(session, response)

    def _session(self, address: NodeAddress) -> aiohttp.ClientSession:
        """One for each stream: logs are asked for rarely, and a node's fingerprint belongs to its connections."""
        import aiohttp

        trust: ssl.SSLContext | aiohttp.Fingerprint = self._tls.certified
        if address.fingerprint:
            trust = aiohttp.Fingerprint(address.fingerprint)
        connector = aiohttp.TCPConnector(ssl=trust, force_close=True)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS_MAX)
        session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        self._streams.add(session)
        return session

    async def _chunks(
        self, session: aiohttp.ClientSession, response: aiohttp.ClientResponse
    ) -> AsyncGenerator[bytes, None]:
        import aiohttp

        try:
            async for chunk in response.content.iter_any():
                if chunk:
                    yield chunk
        except (aiohttp.ClientError, OSError):
            # The node went away in the middle: what was read stands.
            return
        finally:
            await self._end(session)

    async def _end(self, session: aiohttp.ClientSession) -> None:
        self._streams.discard(session)
        await session.close()


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status < _FAILURES:
        return
    text = (await response.content.read(MESSAGE_BYTES_MAX)).decode(errors="replace").strip()
    if response.status == 400:  # noqa: PLR2004 - Bad Request
        raise BadRequestError(text)
    if response.status == 404:  # noqa: PLR2004 - Not Found
        raise PathNotFoundError
    raise InternalError(text)
