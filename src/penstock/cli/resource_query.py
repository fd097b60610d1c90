"""`penstock resource-query`: options, files, prompt and exit code of a session (see `penstock.fluxion`)."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final, TextIO

from penstock.engine.graph import Graph
from penstock.errors import BadRequest
from penstock.fluxion.options import USAGE, ResourceQueryOptions, UnsupportedOption, UsageError, parse_options
from penstock.fluxion.readers.grug import read_grug
from penstock.fluxion.readers.jgf import read_jgf
from penstock.fluxion.readers.rv1exec import read_rv1exec
from penstock.fluxion.session import Session

__all__ = ["Streams", "main"]

_PROMPT: Final = "resource-query> "
_READERS: Final = {"grug": read_grug, "jgf": read_jgf, "rv1exec": read_rv1exec, "rv1exec_force": read_rv1exec}


@dataclass(frozen=True, slots=True)
class Streams:
    """Input and output of a session; tests replace them."""

    stdin: Iterable[bytes]
    stdout: TextIO
    stderr: TextIO


def main(argv: list[str], streams: Streams | None = None) -> int:
    streams = streams or Streams(sys.stdin.buffer, sys.stdout, sys.stderr)
    try:
        options = parse_options(argv)
    except UnsupportedOption as error:
        print(f"penstock resource-query: {error}", file=streams.stderr)
        return 1
    except UsageError as error:
        print(f"penstock resource-query: {error}\nTry `penstock resource-query --help`.", file=streams.stderr)
        return 1
    if options.help:
        print(USAGE, file=streams.stderr)
        return 0
    return _run(options, streams)


def _run(options: ResourceQueryOptions, streams: Streams) -> int:
    began = time.perf_counter()
    gc.disable()  # Collections while the graph grows cost more than building it, and find no garbage.
    try:
        with open(options.load_file, "rb") as stream:
            graph = _READERS[options.load_format](stream.read())
    except (BadRequest, OSError) as error:
        print(": Runtime error: resource_query_t: ERROR: ", file=streams.stderr)
        print("ERROR: error generating resources\n", file=streams.stderr)
        if streams.stderr.isatty():  # Scripts expect Fluxion's two lines; a person also gets the cause.
            print(f"penstock resource-query: {options.load_file}: {error}", file=streams.stderr)
        return 1
    import penstock.model.yaml_tree  # noqa: F401 (it would be imported by the first match)

    gc.freeze()
    gc.enable()
    if options.load_format == "jgf":
        for vertex in graph.vertices.values():
            vertex.unit = ""  # Fluxion reads no units from JGF, so it writes none.
    with ExitStack() as stack:
        out: TextIO = streams.stdout
        if options.test_output:
            try:
                out = stack.enter_context(open(options.test_output, "w", encoding="utf-8", newline="\n"))
            except OSError as error:
                print(
                    f"penstock resource-query: -t: cannot write {options.test_output!r}: {error.strerror}",
                    file=streams.stderr,
                )
                return 1
        session = Session(graph, options, out, streams.stdout, streams.stderr)
        if options.elapse_time:
            _print_load(graph, time.perf_counter() - began, streams.stdout)
        try:
            for line in _lines(options, streams):
                if not session.execute(line):
                    break
        except BrokenPipeError:
            return 0
        streams.stdout.flush()
    return 0


def _lines(options: ResourceQueryOptions, streams: Streams) -> Iterator[str]:
    if streams.stdin is not sys.stdin.buffer or not sys.stdin.isatty():
        for raw in streams.stdin:
            yield raw.decode("utf-8", "replace")
        return
    with suppress(ImportError):
        import readline  # noqa: F401 (gives `input` editing and history)
    while True:
        try:
            yield input(_PROMPT if options.prompt else "")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()


def _print_load(graph: Graph, elapsed: float, out: TextIO) -> None:
    names = {vertex.name for vertex in graph.vertices.values()}
    paths = {path for vertex in graph.vertices.values() for path in vertex.paths.values()}
    print(f"INFO: Graph Load Time: {elapsed:g}", file=out)
    print(f"INFO: Vertex Count: {len(graph)}", file=out)
    print(f"INFO: Edge Count: {graph.edges()}", file=out)
    print(f"INFO: by_type Key-Value Pairs: {len(graph.types())}", file=out)
    print(f"INFO: by_name Key-Value Pairs: {len(names)}", file=out)
    print(f"INFO: by_path Key-Value Pairs: {len(paths)}", file=out)
    ranks: dict[int, int] = {}
    for vertex in graph.vertices.values():
        ranks[vertex.rank] = ranks.get(vertex.rank, 0) + 1
    for rank in sorted(ranks):
        print(f"INFO: number of vertices with rank {rank}: {ranks[rank]}", file=out)
