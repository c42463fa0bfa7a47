"""DynamicResources: finds nodes with devices for a Pod's claims, and allocates and reserves the claims."""
