"""Streams into containers: exec, attach and port-forward, by WebSocket and SPDY."""
