"""A production trace of GPU Pods as a benchmark: how much of the GPUs each scheduling policy allocates, and how fast.

The trace is Alibaba's cluster-trace-gpu-v2023 ("OpenB"); `trace.SOURCE` says where to get it.
"""
