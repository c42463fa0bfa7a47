"""gRPC: generated messages in `pb/` (never edited) and unix-socket helpers."""
