"""`qd version` and `qd completion`."""

from __future__ import annotations

from quarterdeck import __version__
from quarterdeck.cli.command_table import Argument, Command, CommandTable, choice
from quarterdeck.cli.context import Context


def build_command_table() -> CommandTable:
    shell_argument = Argument("shell", "SHELL", choice("bash", "zsh", "fish"))
    return CommandTable(
        (
            Command(
                ("completion",),
                "Print the completion script for a shell.",
                completion,
                (shell_argument,),
                description=_COMPLETION_HELP,
            ),
            Command(("version",), "Print the version.", version),
        ),
        {},
    )


_COMPLETION_HELP = """\b
bash: echo 'eval "$(qd completion bash)"' >> ~/.bashrc
zsh:  echo 'eval "$(qd completion zsh)"' >> ~/.zshrc
fish: qd completion fish > ~/.config/fish/completions/qd.fish"""


def version(context: Context) -> int:
    context.show({"version": __version__}, lambda document: f"quarterdeck {document['version']}")
    return 0


def completion(context: Context) -> int:
    from quarterdeck.cli.click_parser import completion_script

    script = completion_script(context.required_text("shell"))
    context.show({"script": script}, lambda document: script)
    return 0
