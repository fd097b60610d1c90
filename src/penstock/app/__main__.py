"""The daemon's own command line: `python -m penstock.app serve` and `python -m penstock.app stop-database`.

`penstock start` and `penstock stop` launch these; they are not meant for users, whose options the commands
have already parsed. `serve` checks the configuration, the database address, the kubeconfig and the state
directory before it creates anything, so a refused start leaves no file behind.

The address of a database comes in the environment variable PENSTOCK_DATABASE and not as an option, because it
may contain a password, and other users can read the command line of a process. It is removed from the
environment at once, so that tasks do not inherit it.

With `--report-fd` the daemon runs in the background: it reports "ready", "waiting" or an error as JSON lines
on that descriptor, and its log goes to the state directory. Until the checks have passed, standard error is
still that of `penstock start`, so that a failing import is not lost. Without it, errors go to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from penstock.app.configuration import Configuration, read_configuration
from penstock.app.identity import InstanceIdentity, StartOptions, lock, read_identity
from penstock.app.readiness import ReadinessReport, error_family, exit_code
from penstock.errors import BadRequest, PenstockError, Unavailable
from penstock.paths import InstancePaths, make_paths, paths_of
from penstock.store.address import EMBEDDED, check_address
from penstock.store.embedded import EmbeddedPostgres
from penstock.web.tls import TlsFiles, check_tls

__all__ = ["main"]


def main(argv: list[str]) -> int:
    arguments = _parser().parse_args(argv)
    report = ReadinessReport(getattr(arguments, "report_fd", None))
    try:
        paths = paths_of(arguments.state, os.environ)
        if arguments.action == "stop-database":
            sys.stdout.write(json.dumps({"database": _stop_database(paths)}) + "\n")
            return 0
        return _serve(arguments, paths, report)
    except PenstockError as error:
        if report.is_open:
            report.send({"error": str(error), "kind": error_family(error)})
        else:
            sys.stderr.write(f"penstock: {error}\n")
        return exit_code(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m penstock.app", allow_abbrev=False)
    actions = parser.add_subparsers(dest="action", required=True)
    serve = actions.add_parser("serve", help="run an instance until a signal or `penstock stop`")
    stop = actions.add_parser("stop-database", help="stop the database that a killed instance left running")
    for action in (serve, stop):
        action.add_argument("--state", required=True, help="the state directory")
    for option in ("--nodes", "--cores", "--gpus", "--mem", "--queue-depth", "--report-fd"):
        serve.add_argument(option, type=int)
    for option in ("--config", "--kubeconfig", "--tls-cert", "--tls-key"):
        serve.add_argument(option, type=Path)
    for option in ("--policy", "--match-policy", "--listen", "--context"):
        serve.add_argument(option, default="")
    for option in ("--kube", "--defaults"):
        serve.add_argument(option, action="store_true")
    return parser


def _serve(arguments: argparse.Namespace, paths: InstancePaths, report: ReadinessReport) -> int:
    database = os.environ.pop("PENSTOCK_DATABASE", "")
    configuration, start_options = _check(arguments, paths, database)
    # The daemon imports every package. Refusals above must not take that long.
    from penstock.app.daemon import DaemonOptions, run

    kube = None
    if arguments.kube:
        kube = replace(configuration.kube, kubeconfig=arguments.kubeconfig, context=arguments.context)
    make_paths(paths)
    if report.is_open:
        _detach(paths)
    return run(
        DaemonOptions(
            paths=paths,
            configuration=configuration,
            start_options=start_options,
            nodes=arguments.nodes,
            cores=arguments.cores,
            gpus=arguments.gpus,
            memory_mib=arguments.mem,
            database=None if not database else "" if database == EMBEDDED else database,
            listen=arguments.listen,
            tls=_tls_files(arguments),
            kube=kube,
            report=report,
        )
    )


def _check(
    arguments: argparse.Namespace, paths: InstancePaths, database: str
) -> tuple[Configuration, StartOptions]:
    """Raises what is wrong with the options, their files or the state directory. Creates nothing."""
    start_options = _start_options(arguments, read_identity(paths))
    configuration = _configuration(arguments.config, start_options)
    check_address(database)
    if (tls := _tls_files(arguments)) is not None:
        check_tls(tls)
    if arguments.kube:
        from penstock.kube.access import find_access

        find_access(arguments.kubeconfig, arguments.context)
    return configuration, start_options


def _start_options(arguments: argparse.Namespace, found: InstanceIdentity | None) -> StartOptions:
    """The options that configure the scheduler; those that are not given are as in the last start.

    A configuration file that is given replaces all of them, so that an option of an earlier start does not
    override what the file says.
    """
    is_new = found is None or arguments.defaults or arguments.config is not None
    kept = StartOptions() if found is None or is_new else found.options
    depth = arguments.queue_depth
    return StartOptions(
        config=os.path.abspath(arguments.config) if arguments.config is not None else kept.config,
        policy=arguments.policy or kept.policy,
        match_policy=arguments.match_policy or kept.match_policy,
        queue_depth=depth if depth is not None else kept.queue_depth,
    )


def _configuration(typed: Path | None, options: StartOptions) -> Configuration:
    path = typed or (Path(options.config) if options.config else None)
    try:
        return read_configuration(
            path, policy=options.policy, match_policy=options.match_policy, queue_depth=options.queue_depth
        )
    except BadRequest as error:
        if typed is not None or path is None:
            raise
        advice = "this is the configuration of the last start; --config FILE names another, --defaults none"
        raise BadRequest(
            f"{error.summary}; {advice}", where=error.where, found=error.found, expected=error.expected
        ) from error


def _tls_files(arguments: argparse.Namespace) -> TlsFiles | None:
    if arguments.tls_cert is None and arguments.tls_key is None:
        return None
    if arguments.tls_cert is None or arguments.tls_key is None or not arguments.listen:
        raise BadRequest("these options need each other", where="--listen, --tls-cert, --tls-key")
    return TlsFiles(arguments.tls_cert, arguments.tls_key)


def _detach(paths: InstancePaths) -> None:
    """Sends output to the log in the state directory and leaves the working directory of the user."""
    try:
        log = os.open(paths.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unavailable(f"cannot write {paths.log}: {error.strerror}") from error
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.chdir("/")


def _stop_database(paths: InstancePaths) -> int | None:
    """Stops the embedded database of a dead instance. Returns its pid, or None if none runs."""
    if not paths.database.is_dir():
        return None
    descriptor = lock(paths)  # No instance can start meanwhile.
    try:
        database = EmbeddedPostgres(paths)
        pid = database.pid()
        if pid is not None:
            database.stop()
        return pid
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
