"""Who makes a call. Every method of the service takes a `Caller` as its first argument.

A protocol adapter builds the `Caller` from what it has authenticated; the service never reads a socket or
a header. Fields that name the author of a change, such as the owner of a submitted job, come from
`Caller.user`. The service does not authorize yet: `namespaces` is carried so that it can.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["AuthenticationMethod", "Caller"]


class AuthenticationMethod(enum.Enum):
    UNIX_SOCKET = "unix-socket"  # the file mode of the socket admits only the user who runs the instance
    BEARER_TOKEN = "bearer-token"
    IN_PROCESS = "in-process"  # called without a transport, by the process of the instance itself


@dataclass(frozen=True, slots=True)
class Caller:
    user: str
    method: AuthenticationMethod
    namespaces: frozenset[str] | None = None  # None: all namespaces
