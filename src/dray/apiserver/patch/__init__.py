"""Patches: a document and a change in, a new document out; nothing here reads a clock or changes its arguments.

`json_patch`, `merge_patch` and `strategic` each have `decode` (body to patch) and `apply`. `managed_fields` records
who set which field (`update.update_managed_fields`) and merges applied configurations (`apply.apply`).
Callers import the modules; this package exports nothing itself and knows nothing of requests or storage.
"""
