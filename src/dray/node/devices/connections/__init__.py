"""Which plugin serves which resource."""
