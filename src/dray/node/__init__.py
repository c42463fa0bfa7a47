"""The node agent: Pods, resource managers, plugins, checkpoints and container runtimes of one machine."""
