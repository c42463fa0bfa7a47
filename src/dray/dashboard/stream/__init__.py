"""Everything the page shows as one stream of changes: browsers have too few connections for a watch of each kind."""
