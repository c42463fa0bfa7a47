"""From a Pod's container to one that runs."""
