"""Calls PodResources List at a fixed rate and prints the duration of each call."""

from __future__ import annotations

import json
import sys
import time

import grpc

from dray.rpc.pb.podresources.v1 import api_pb2 as v1
from dray.rpc.pb.podresources.v1.api_pb2_grpc import PodResourcesListerStub


def main(path: str, calls: int, per_second: float) -> None:
    """Run the calls; the first one, which opens the connection, is not counted."""
    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(f"unix:{path}", options=options) as channel:
        # Without deserialization: only the node's part is measured.
        raw = channel.unary_unary("/v1.PodResourcesLister/List", request_serializer=None, response_deserializer=None)
        PodResourcesListerStub(channel).List(v1.ListPodResourcesRequest())
        found = []
        for _ in range(calls):
            began = time.perf_counter()
            raw(b"")
            ended = time.perf_counter()
            found.append(ended - began)
            # Delays are not caught up: the node would reject the burst.
            time.sleep(max(0.0, began + 1 / per_second - ended))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
