"""`qd version` and `qd completion`."""

from __future__ import annotations

from quarterdeck import __version__
from quarterdeck.cli.command_table import Argument, Group, choice
from quarterdeck.cli.context import Context

GROUP = Group("")


_COMPLETION_HELP = """\b
bash: echo 'eval "$(qd completion bash)"' >> ~/.bashrc
zsh:  echo 'eval "$(qd completion zsh)"' >> ~/.zshrc
fish: qd completion fish > ~/.config/fish/completions/qd.fish"""


@GROUP.command("version", "Print the version.")
def version(context: Context) -> None:
    context.show({"version": __version__}, lambda document: f"quarterdeck {document['version']}")


@GROUP.command(
    "completion",
    "Print the completion script for a shell.",
    Argument("shell", "SHELL", choice("bash", "zsh", "fish")),
    description=_COMPLETION_HELP,
)
def completion(context: Context) -> None:
    from quarterdeck.cli.click_parser import completion_script

    script = completion_script(context.required_text("shell"))
    context.show({"script": script}, lambda document: script)
