"""The HTTP API of an instance: `create_app` makes it from a `Service`, `serve` listens.

Nothing is decided here. A request is checked for its form, handed to the service as values, and what comes
back is written as JSON. What the service means by its answers is the instance's business.
"""

from __future__ import annotations

from penstock.api.interface import CancelSelection, Doc, JobsQuery, Service, Stream, Submission
from penstock.web.app import create_app
from penstock.web.server import listen_tcp, make_socket, read_token, serve

__all__ = [
    "CancelSelection",
    "Doc",
    "JobsQuery",
    "Service",
    "Stream",
    "Submission",
    "create_app",
    "listen_tcp",
    "make_socket",
    "read_token",
    "serve",
]
