"""NUMA alignment: topology manager, CPU manager and memory manager."""
