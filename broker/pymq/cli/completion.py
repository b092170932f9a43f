"""``pymq completion``: what a shell needs to complete our commands and options."""

from enum import StrEnum
from typing import Annotated

import typer

from pymq.cli import output


class Shell(StrEnum):
    """The shells."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(help="Which shell.")],
) -> None:
    """Print a completion script.

    bash: eval "$(pymq completion bash)" in ~/.bashrc; zsh: likewise in ~/.zshrc, after compinit;
    fish: pymq completion fish > ~/.config/fish/completions/pymq.fish
    """
    # Typer does the same behind options that it would add to the help of everything.
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    output.line(
        get_completion_script(
            prog_name="pymq", complete_var="_PYMQ_COMPLETE", shell=shell.value
        )
    )
