"""`penstock completion`: the script that makes a shell complete our commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from penstock.cli.group import SETTINGS
from penstock.cli.terminal import say

__all__ = ["completion"]


@click.command(context_settings=SETTINGS)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    bash:  eval "$(penstock completion bash)"
    zsh:   eval "$(penstock completion zsh)"
    fish:  penstock completion fish | source
    """
    found = get_completion_class(shell)
    assert found is not None  # The choice names only shells that click knows.
    root = click.Group("penstock")
    say(found(root, {}, "penstock", "_PENSTOCK_COMPLETE").source())
