"""`penstock completion`: prints the script with which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from penstock.cli.group import SETTINGS, json_option
from penstock.cli.terminal import print_json, print_line

__all__ = ["completion"]


@click.command(context_settings=SETTINGS)
@json_option
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str, output_format: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash:  eval "$(penstock completion bash)"
    zsh:   eval "$(penstock completion zsh)"
    fish:  penstock completion fish | source
    """
    found = get_completion_class(shell)
    assert found is not None  # The choice lists only shells that click supports.
    root = click.Group("penstock")
    script = found(root, {}, "penstock", "_PENSTOCK_COMPLETE").source()
    if output_format == "json":
        print_json({"shell": shell, "script": script})
    else:
        print_line(script)
