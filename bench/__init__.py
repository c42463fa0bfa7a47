"""Measurements of Dray on this machine: `python -m bench`; everything runs on loopback and ends by itself."""

import os

# gRPC's handlers around fork, which it looks for when it is imported, only complain when a program is started.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
