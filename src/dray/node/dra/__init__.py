"""Dynamic resources on the node: which claims its Pods use, prepared by drivers, and never forgotten."""
