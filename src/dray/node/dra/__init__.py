"""Dynamic resource allocation on the node: the claims of Pods, DRA drivers, device health, ResourceSlice cleanup."""
