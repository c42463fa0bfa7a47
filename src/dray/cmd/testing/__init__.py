"""A whole cluster in a test's process: `running_cluster()` for any program, `pytest --dray` for tests of drivers."""
