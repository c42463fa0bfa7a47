"""The scheduler: queue, cache, scheduling and binding cycle, plugins. A client of the API only."""
