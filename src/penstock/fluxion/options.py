"""The options of `resource-query`, parsed with getopt as in Fluxion."""

from __future__ import annotations

import getopt
import os
from dataclasses import dataclass
from typing import Final

from penstock.engine.filters import DEFAULT_FILTERS, BadFilter, Filters
from penstock.engine.policies import NAMED_POLICIES, BadPolicy, Policy, parse_policy
from penstock.fluxion.writers import FORMATS

__all__ = ["USAGE", "ResourceQueryOptions", "UnsupportedOption", "UsageError", "parse_options"]

USAGE: Final = """usage: penstock resource-query [OPTIONS...]

Matches jobspecs against a resource graph. Reads commands from standard input; `help` lists them,
`quit` or the end of input ends the session.

OPTIONS:
    -L, --load-file=FILE         file with the resource graph (default: conf/default)
    -f, --load-format=FORMAT     grug (default), jgf, rv1exec, rv1exec_force
    -W, --load-allowlist=TYPES   accepted, without effect: no supported load format filters types
    -S, --match-subsystems=NAME  CA, containment (default)
    -P, --match-policy=POLICY    first (default), firstnodex, high, low, hinode, lonode, hinodex,
                                 lonodex, pack, spread, or a custom one such as
                                 'policy=low node_centric=true'
    -F, --match-format=FORMAT    simple (default), pretty_simple, jgf, rlite, rv1, rv1_nosched
    -T, --traverser-policy=NAME  simple (default)
    -p, --prune-filters=LIST     HIGH:LOW[,HIGH:LOW...], HIGH may be ALL (default: ALL:core,ALL:node)
    -g, --graph-format=FORMAT    dot (default), graphml; accepted, without effect
    -o, --graph-output=NAME      accepted, without effect
    -r, --reserve-vtx-vec=N      0 to 2000000; accepted, without effect
    -e, --elapse-time            print elapsed times and visit counts
    -d, --disable-prompt         do not print a prompt
    -t, --test-output=FILE       write results to FILE instead of standard output
    -h, --help                   print this help and exit
"""

_SHORT: Final = "L:f:W:S:P:F:g:o:p:t:r:T:edh"
_LONG: Final = {
    "load-file": "L",
    "load-format": "f",
    "load-allowlist": "W",
    "match-subsystems": "S",
    "match-policy": "P",
    "match-format": "F",
    "graph-format": "g",
    "graph-output": "o",
    "prune-filters": "p",
    "test-output": "t",
    "reserve-vtx-vec": "r",
    "traverser-policy": "T",
    "elapse-time": "e",
    "disable-prompt": "d",
    "help": "h",
}
_LOAD_FORMATS: Final = ("grug", "jgf", "rv1exec", "rv1exec_force")
_SUBSYSTEMS: Final = [
    "IBA",
    "IBBA",
    "PFS1BA",
    "PA",
    "C+IBA",
    "C+IBBA",
    "C+PFS1BA",
    "C+PA",
    "IB+IBBA",
    "C+P+IBA",
    "VA",
    "V+PFS1BA",
    "ALL",
]
_UNSUPPORTED: Final[dict[str, tuple[str, ...]]] = {
    "f": ("hwloc", "jgf_shorthand"),
    "F": ("jgf_shorthand", "rv1_shorthand"),
    "P": ("locality", "variation"),
    "T": ("flexible",),
    "S": (*_SUBSYSTEMS, *(name.lower() for name in _SUBSYSTEMS)),
}


class UsageError(Exception):
    """An invalid option or option value; the text names it and says what is valid."""


class UnsupportedOption(Exception):
    """An option value that Fluxion supports and Penstock does not support yet."""


@dataclass(frozen=True, slots=True)
class ResourceQueryOptions:
    load_file: str = "conf/default"
    load_format: str = "grug"
    policy: Policy = NAMED_POLICIES["first"]
    match_format: str = "simple"
    filters: str = DEFAULT_FILTERS
    elapse_time: bool = False
    prompt: bool = True
    test_output: str = ""
    help: bool = False


def parse_options(argv: list[str]) -> ResourceQueryOptions:
    try:
        pairs, rest = getopt.gnu_getopt(
            argv, _SHORT, [name + ("=" if letter not in "edh" else "") for name, letter in _LONG.items()]
        )
    except getopt.GetoptError as error:
        raise UsageError(str(error)) from error
    values: dict[str, str] = {}
    for option, value in pairs:
        letter = option[1:] if not option.startswith("--") else _LONG[option[2:]]
        values[letter] = value
    if "h" in values:
        return ResourceQueryOptions(help=True)
    if rest:
        raise UsageError(f"unexpected argument {rest[0]!r}; only options are allowed")
    for letter, names in _UNSUPPORTED.items():
        if values.get(letter) in names:
            raise UnsupportedOption(f"-{letter} {values[letter]} is not supported yet")
    return _checked(values)


def _checked(values: dict[str, str]) -> ResourceQueryOptions:
    load_file = values.get("L", "conf/default")
    if not os.path.exists(load_file) or os.path.isdir(load_file):
        raise UsageError(f"-L: {load_file!r} is not an existing file")
    _one_of("f", values.get("f", "grug"), _LOAD_FORMATS)
    _one_of("S", values.get("S", "CA"), ("CA", "ca"))
    _one_of("F", values.get("F", "simple"), tuple(FORMATS))
    _one_of("T", values.get("T", "simple"), ("simple",))
    _one_of("g", values.get("g", "dot").lower(), ("dot", "graphml"))
    filters = values.get("p", DEFAULT_FILTERS)
    try:
        Filters(filters)
        policy = parse_policy(values.get("P", "first"))
    except (BadFilter, BadPolicy) as error:
        raise UsageError(str(error)) from error
    return ResourceQueryOptions(
        load_file=load_file,
        load_format=values.get("f", "grug"),
        policy=policy,
        match_format=values.get("F", "simple"),
        filters=filters,
        elapse_time="e" in values,
        prompt="d" not in values,
        test_output=values.get("t", ""),
    )


def _one_of(letter: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"-{letter}: {value!r} is not one of {', '.join(allowed)}")
