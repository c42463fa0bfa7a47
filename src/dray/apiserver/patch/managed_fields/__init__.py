"""Who manages which fields of an object: field sets, their bookkeeping, and server-side apply.

`field_set` has the sets and their wire form, `shape` the types as these algorithms see them, `walk`, `typed_merge`
and `typed_errors` the walks over documents, `entries` the `metadata.managedFields` list; `update` and `apply` are
the two operations that callers use. No walk knows of managers, no operation knows of requests.
"""
