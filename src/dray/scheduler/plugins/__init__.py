"""The built-in plugins: one file, one idea."""
