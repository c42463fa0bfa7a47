"""gRPC: generated messages in `pb/` (never edited) and unix-socket helpers; the protocols of exec and attach."""
