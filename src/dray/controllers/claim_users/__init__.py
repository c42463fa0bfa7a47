"""What the two claim controllers know of the Pods that use claims."""
