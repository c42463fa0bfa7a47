"""Device health as reported by DRA drivers."""
