"""The dashboard: a static page and its data endpoints. Requests run with the user's own permissions."""
