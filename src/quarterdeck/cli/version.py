"""What concerns the program itself: its version, and completion in the shell."""

from __future__ import annotations

from quarterdeck import __version__
from quarterdeck.cli.command_table import Argument, Command, Noun, choice
from quarterdeck.cli.context import Context


def noun() -> Noun:
    shell = Argument("shell", "SHELL", choice("bash", "zsh", "fish"))
    return Noun(
        (
            Command(
                ("completion",),
                "Print the completion script for a shell.",
                completion,
                (shell,),
                description=_HOW_TO_COMPLETE,
            ),
            Command(("version",), "Print the version.", version),
        ),
        {},
    )


_HOW_TO_COMPLETE = """\b
bash: echo 'eval "$(qd completion bash)"' >> ~/.bashrc
zsh:  echo 'eval "$(qd completion zsh)"' >> ~/.zshrc
fish: qd completion fish > ~/.config/fish/completions/qd.fish"""


def version(context: Context) -> int:
    context.show({"version": __version__}, lambda document: f"quarterdeck {document['version']}")
    return 0


def completion(context: Context) -> int:
    from quarterdeck.cli.click_parser import completion_script

    script = completion_script(context.given("shell"))
    context.show({"script": script}, lambda document: script)
    return 0
