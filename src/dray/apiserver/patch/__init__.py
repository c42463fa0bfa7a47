"""Patches: functions from a document and a change to a new document. Pure; arguments are not changed.

`json_patch`, `merge_patch` and `strategic` each have `decode` (body to patch) and `apply`. `managed_fields` tracks
field ownership (`update.update_managed_fields`) and merges applied configurations (`apply.apply`).
"""
