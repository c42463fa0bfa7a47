"""The scheduler: queue, snapshot cache, scheduling cycle, plugins."""
