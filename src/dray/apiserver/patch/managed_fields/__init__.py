"""Field management: field sets, ownership tracking, and server-side apply.

`field_set` has the sets and their wire form, `shape` the types as these algorithms use them, `walk`, `typed_merge`
and `typed_errors` the traversals of documents, `entries` the `metadata.managedFields` list; `update` and `apply` are
the two operations that callers use.
"""
