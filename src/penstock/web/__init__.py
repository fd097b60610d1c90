"""The HTTP API of an instance: `app.create_app` maps HTTP to a `Service`, `server.serve` listens.

Nothing is decided here. A request is parsed, passed to the service as typed values together with the caller,
and the typed response is written as JSON or as server-sent events.
"""
