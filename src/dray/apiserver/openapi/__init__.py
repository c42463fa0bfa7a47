"""OpenAPI documents of all served resources: v3 by group and version, v2 in one document; built on first use."""
