"""Unexpected exceptions about one object, which concern that object alone."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from penstock.errors import BadRequest
from penstock.kube.types import Node
from penstock.podspec.nodes import TopologyLevel, node_fact
from penstock.podspec.problems import INTERNAL_ERROR, PodProblem
from penstock.protocol.facts import NodeSet

__all__ = ["fault_of", "isolated_node_fact"]

_LOG: Final = logging.getLogger("penstock.kube")


def fault_of(what: str, error: Exception) -> PodProblem:
    """The problem of a pod that cannot be read because of a defect; it is logged."""
    _LOG.error("cannot read %s", what, exc_info=error)
    return PodProblem(INTERNAL_ERROR, f"reading {what} has failed: {type(error).__name__}: {error}")


def isolated_node_fact(node: Node, topology_levels: Sequence[TopologyLevel]) -> NodeSet:
    """A node as a fact; one that cannot be read is not up."""
    try:
        return node_fact(node, topology_levels)
    except Exception as error:
        if not isinstance(error, BadRequest):
            _LOG.exception("cannot read node %s", node.metadata.name)
        return NodeSet(node.metadata.name, (), up=False, why=f"the Node cannot be read: {error}")
