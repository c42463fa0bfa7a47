"""What the books of CPUs and memory have in common: files and freeing."""
