"""Request handlers, one module per verb or subresource: coroutines that read and write the store."""
