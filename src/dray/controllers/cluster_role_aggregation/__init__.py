"""Fills in the rules of aggregated ClusterRoles, so that people see what the role grants."""
