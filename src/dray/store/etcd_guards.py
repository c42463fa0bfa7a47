"""Guards in etcd: keys beside the store's own, which are written to order the writes of several API servers.

A guard that was not written for long is deleted. Before, the floor is raised to its revision: a write is refused if
its writer has not observed everything up to the floor, as if every deleted guard had been written at that revision.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from dray.rpc.pb.etcd import rpc_pb2

# Below etcd's default limit of 128 operations in a transaction.
_BATCH: Final = 100
_DIGITS: Final = 20

Call = Callable[[str, Any], Awaitable[Any]]


class Guards:
    """The guards below one prefix."""

    def __init__(self, prefix: bytes) -> None:
        self._first = prefix + b"!guards/"
        self._end = prefix + b"!guards0"
        self._floor = prefix + b"!guard-floor"

    async def create_floor(self, call: Call) -> None:
        """Create the floor if this etcd has none."""
        absent = rpc_pb2.Compare(
            key=self._floor, target=rpc_pb2.Compare.VERSION, result=rpc_pb2.Compare.EQUAL, version=0
        )
        await call("Txn", rpc_pb2.TxnRequest(compare=[absent], success=[self._put_floor(0)]))

    def extend(self, request: Any, guards: Mapping[str, int]) -> None:
        """Let a transaction succeed only if its writer has observed all writes of the guards, and write them."""
        if not guards:
            return
        for guard, revision in guards.items():
            key = self._first + guard.encode()
            request.compare.append(
                rpc_pb2.Compare(
                    key=key, target=rpc_pb2.Compare.MOD, result=rpc_pb2.Compare.LESS, mod_revision=revision + 1
                )
            )
            request.success.append(rpc_pb2.RequestOp(request_put=rpc_pb2.PutRequest(key=key)))
            request.failure.append(rpc_pb2.RequestOp(request_range=rpc_pb2.RangeRequest(key=key, keys_only=True)))
        request.compare.append(
            rpc_pb2.Compare(
                key=self._floor,
                target=rpc_pb2.Compare.VALUE,
                result=rpc_pb2.Compare.LESS,
                value=_padded(min(guards.values()) + 1),
            )
        )
        request.failure.append(rpc_pb2.RequestOp(request_range=rpc_pb2.RangeRequest(key=self._floor)))

    def written_since(self, guards: Mapping[str, int], found: Sequence[Any]) -> dict[str, int]:
        """Return the guards that were written after the revisions given, from what a failed transaction has read."""
        *pairs, floor_pairs = found
        floor = int(floor_pairs[0].value) if floor_pairs else 0
        written = {
            guard: max(floor, int(kvs[0].mod_revision) if kvs else 0) for guard, kvs in zip(guards, pairs, strict=True)
        }
        return {guard: at for guard, at in written.items() if at > guards[guard]}

    async def collect(self, call: Call, revision: int) -> int:
        """Delete the guards that were last written up to a revision; return their number."""
        deleted, start = 0, self._first
        while True:
            page = await call(
                "Range", rpc_pb2.RangeRequest(key=start, range_end=self._end, limit=_BATCH, keys_only=True)
            )
            old = [pair for pair in page.kvs if pair.mod_revision <= revision]
            if old:
                deleted += await self._delete(call, old)
            if not page.more:
                return deleted
            start = page.kvs[-1].key + b"\0"

    async def _delete(self, call: Call, old: Sequence[Any]) -> int:
        floor = (await call("Range", rpc_pb2.RangeRequest(key=self._floor))).kvs[0]
        newest = max(int(floor.value), *(int(pair.mod_revision) for pair in old))
        # None is deleted if one of them was written meanwhile, or another server has raised the floor.
        unchanged = [
            rpc_pb2.Compare(
                key=pair.key, target=rpc_pb2.Compare.MOD, result=rpc_pb2.Compare.EQUAL, mod_revision=pair.mod_revision
            )
            for pair in (*old, floor)
        ]
        deletions = [rpc_pb2.RequestOp(request_delete_range=rpc_pb2.DeleteRangeRequest(key=pair.key)) for pair in old]
        transaction = rpc_pb2.TxnRequest(compare=unchanged, success=[*deletions, self._put_floor(newest)])
        return len(old) if (await call("Txn", transaction)).succeeded else 0

    def _put_floor(self, revision: int) -> Any:
        return rpc_pb2.RequestOp(request_put=rpc_pb2.PutRequest(key=self._floor, value=_padded(revision)))


def _padded(revision: int) -> bytes:
    """Return the revision so that values compare as numbers do."""
    return b"%0*d" % (_DIGITS, revision)
