"""What the plugin does between Reserve and Bind, and how it is undone."""
