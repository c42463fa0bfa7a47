"""The scheduler: queue, snapshot cache, scheduling cycle, plugins; a client of the API and of nothing else."""
