"""The hands of the API server: coroutines that run one request against the store, deciding nothing themselves."""
