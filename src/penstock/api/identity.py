"""Who makes a call. Every method of the service takes a `Caller` as its first argument.

A protocol adapter builds the `Caller` from what it has authenticated; the service never reads a socket or
a header. Fields that name the author of a change, such as the owner of a submitted job, come from
`Caller.user`. A caller of all namespaces is an operator, or the owner of an instance on one machine: the
rules of queues about their users do not apply to it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["AuthenticationMethod", "Caller", "Namespaces", "sees"]

Namespaces: TypeAlias = frozenset[str] | None  # whose jobs and pods somebody may see; None: of all


def sees(namespaces: Namespaces, owner: str) -> bool:
    """Whether jobs and pods of an owner are named in answers, instead of counted or left out."""
    return namespaces is None or owner in namespaces


class AuthenticationMethod(enum.Enum):
    UNIX_SOCKET = "unix-socket"  # the file mode of the socket admits only the user who runs the instance
    BEARER_TOKEN = "bearer-token"
    IN_PROCESS = "in-process"  # called without a transport, by the process of the instance itself


@dataclass(frozen=True, slots=True)
class Caller:
    user: str
    method: AuthenticationMethod
    namespaces: Namespaces = None

    @property
    def is_operator(self) -> bool:
        return self.namespaces is None
