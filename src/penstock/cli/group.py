"""The click commands as one group, each imported when it is used, and the translation of their errors.

Every failure prints one line to standard error and returns an exit code of `penstock.cli.exits`. If the
instance does not know a name that the user typed, the line suggests the closest existing name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, NoReturn

import click

from penstock.cli import exits
from penstock.cli.client import ApiClient, RequestRefused, client_of
from penstock.cli.main import COMMANDS
from penstock.cli.terminal import print_error
from penstock.errors import BadRequest, PenstockError, Unavailable

__all__ = [
    "SETTINGS",
    "complete",
    "json_lines_option",
    "json_option",
    "run_click",
    "state_option",
    "with_client",
]

SETTINGS: Final[dict[str, Any]] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

_clients: Final[list[ApiClient]] = []  # the client of the running command, for suggestions


class _Group(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        if entry.parses_argv:
            return click.Command(cmd_name, short_help=entry.summary)  # for completion only
        module, _, name = entry.entry_point.partition(":")
        command: click.Command = getattr(import_module(module), name)
        command.epilog = command.epilog or "\b\n" + exits.TEXT
        return command


_GROUP: Final = _Group("penstock", context_settings=SETTINGS)


def complete() -> NoReturn:
    """Prints the completions that the shell requests, and exits."""
    _GROUP.main(prog_name="penstock", complete_var="_PENSTOCK_COMPLETE")
    sys.exit(0)


def with_client(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--state` and `--server`; passes the client of the selected instance as the first argument."""

    def call(state: str | None, server: str | None, **values: Any) -> Any:
        _clients.append(client_of(state, server))
        return command(_clients[-1], **values)

    call.__doc__ = command.__doc__
    call.__name__ = command.__name__
    call.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    return state_option(_server_option(call))


state_option: Final[Callable[[Callable[..., Any]], Callable[..., Any]]] = click.option(
    "--state", metavar="DIR", help="State directory of the instance (default: PENSTOCK_STATE)."
)

_server_option: Final[Callable[[Callable[..., Any]], Callable[..., Any]]] = click.option(
    "--server",
    metavar="URL",
    help="Instance on TCP (default: PENSTOCK_SERVER); its token is in PENSTOCK_TOKEN or PENSTOCK_TOKEN_FILE.",
)

json_option: Final = click.option(
    "-o",
    "--format",
    "output_format",
    type=click.Choice(["table", "json"]),
    default="table",
    help="Output format: text, or the JSON of the API.",
)


json_lines_option: Final = click.option(
    "-o",
    "--format",
    "output_format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="Output format: the output of the tasks, or one JSON object per line with the events of the API.",
)


def run_click(argv: list[str]) -> int:
    """Runs the command that `argv` names and returns its exit code."""
    try:
        with _GROUP.make_context("penstock", list(argv)) as context:
            found = _GROUP.invoke(context)
        return found if isinstance(found, int) else exits.OK
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except exits.CommandExit as ended:
        if ended.message:
            print_error(ended.message)
        return ended.code
    except click.ClickException as error:
        return _usage_error(error)
    except (KeyboardInterrupt, click.Abort):
        return 128 + 2
    except PenstockError as error:
        return _report_failure(error)


def _usage_error(error: click.ClickException) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):  # A group without a subcommand.
        print(error.format_message(), file=sys.stderr)
        return exits.USAGE
    print_error(
        " ".join(error.format_message().split()).rstrip(".")
    )  # click breaks lines in lists of choices
    context = getattr(error, "ctx", None)
    if isinstance(context, click.Context):
        print(f"Try `{context.command_path} --help`.", file=sys.stderr)
    return exits.USAGE


def _report_failure(error: PenstockError) -> int:
    if not isinstance(error, RequestRefused):
        print_error(str(error))
        if isinstance(error, Unavailable):
            return exits.NO_INSTANCE
        return exits.USAGE if isinstance(error, BadRequest) else exits.FAILED
    hint = _clients[-1].did_you_mean() if error.status == 404 and _clients else ""
    print_error(f"{error}; {hint}" if hint else str(error))
    if error.status == 503:
        return exits.NO_INSTANCE
    return exits.USAGE if error.status in (400, 401, 413) else exits.FAILED
