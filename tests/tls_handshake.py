"""TLS handshakes in memory."""

from __future__ import annotations

import ssl


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Perform a handshake in memory, without a port."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server_end = server.wrap_bio(to_server, to_client, server_side=True)
    client_end = client.wrap_bio(to_client, to_server, server_hostname=host)
    pending = [client_end, server_end]
    for _ in range(10):
        for end in list(pending):
            try:
                end.do_handshake()
                pending.remove(end)
            except ssl.SSLWantReadError:
                continue
        if not pending:
            return server_end, client_end
    raise AssertionError("the handshake does not end")
