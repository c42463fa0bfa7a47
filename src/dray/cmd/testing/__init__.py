"""A whole cluster in the test process: `running_cluster()` for any program, `pytest --dray` for tests of drivers."""
