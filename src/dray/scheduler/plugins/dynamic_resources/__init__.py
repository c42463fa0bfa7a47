"""DynamicResources: finds nodes whose devices meet a Pod's claims, allocates and reserves them."""
