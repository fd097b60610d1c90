"""JSON text in the layout of jansson, Fluxion's JSON library, for scripts that compare output bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

__all__ = ["Json", "dumps"]

Json = str | int | bool | Mapping[str, "Json"] | Sequence["Json"]


def dumps(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)
