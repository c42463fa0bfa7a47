"""The protocols of exec and attach, by WebSocket and SPDY: the side of the server, without containers."""
