"""The node agent: claims and pods of one machine, plugins, checkpoints, runtimes."""
