"""Benchmarks of Dray on this machine: `python -m bench`. Everything runs on loopback."""

import os

# Read by gRPC on import. Its fork handlers only log warnings when a program is started.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
