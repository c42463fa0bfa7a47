"""OpenAPI documents of everything served: v3 by group and version, v2 in one piece; made when asked for, then kept."""
