"""The parser for everything else: help, completion, mistakes. Click, built from the same table as the thin
parser.

Click only parses here. A command's callback hands back the `Ask`, and whoever asked runs it, so both
parsers end in the same place.
"""

from __future__ import annotations

from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem, get_completion_class

from quarterdeck import __version__
from quarterdeck.cli import fast_parser
from quarterdeck.cli.command_table import GLOBALS, Argument, Ask, Command, Kind, Option
from quarterdeck.cli.errors import Usage
from quarterdeck.cli.registry import MODULES, commands_of, noun_of

COMPLETE_VARIABLE = "_QD_COMPLETE"
_HELP_OPTIONS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_ABOUT = """The coordination plane for fleets of AI agents.

Every command finds its server by itself: the one of the data directory, started if none runs, or the one
that --url names. The options below may stand before or after the command.
"""


def parse(argv: Sequence[str]) -> Ask | int:
    """The command that is meant, or the exit code where help was all that was wanted."""
    found = fast_parser.walk(argv)
    args = [*found.command.words, *found.rest] if found else list(argv) or ["--help"]
    if args[0] == "help":
        args = [*args[1:], "--help"]
    try:
        outcome: object = _Root().main(args, prog_name="qd", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as bare:
        raise Usage("usage", f"Which command?\n\n{bare.format_message()}") from None
    except click.UsageError as mistake:
        raise Usage("usage", _sentence(mistake)) from None
    return outcome if isinstance(outcome, Ask) else 0


def complete(instruction: str) -> int:
    """Answers the shell's completion script, which asks through an environment variable."""
    from click.shell_completion import shell_complete

    return shell_complete(_Root(), {}, "qd", COMPLETE_VARIABLE, instruction)


def completion_script(shell: str) -> str:
    kind = get_completion_class(shell)
    assert kind is not None  # the table allows only shells that Click knows
    return kind(_Root(), {}, "qd", COMPLETE_VARIABLE).source()


def _sentence(mistake: click.UsageError) -> str:
    message = mistake.format_message().rstrip()
    if message[-1:] not in ".?!":
        message += "."
    path = mistake.ctx.command_path if mistake.ctx else "qd"
    return f"{message} Try `{path} --help`."


class _Sections(click.Command):
    """Help that shows a command's own options first, and apart those that every command has."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shared = {option.name for option in GLOBALS}
        own: list[tuple[str, str]] = []
        common: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            line = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if line is not None:
                (common if shared & set(param.opts) else own).append(line)
        for title, lines in (("Options", own), ("Options of every command", common)):
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)


class _Branch(_Sections, click.Group):
    """A group whose commands are looked up when they are asked for."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if ctx.resilient_parsing or args[0].startswith("-") or self.get_command(ctx, args[0]):
            return super().resolve_command(ctx, args)
        from difflib import get_close_matches

        near = get_close_matches(args[0], self.list_commands(ctx), n=1, cutoff=0.5)
        meant = f" Did you mean `{ctx.command_path} {near[0]}`?" if near else ""
        raise click.UsageError(f"There is no command `{ctx.command_path} {args[0]}`.{meant}", ctx)


class _Root(_Branch):
    def __init__(self) -> None:
        super().__init__(
            "qd", help=_ABOUT, params=[*_options(GLOBALS), _version_option()], context_settings=dict(_HELP_OPTIONS)
        )

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        commands = commands_of(cmd_name)
        if not commands:
            return None
        return _leaf(commands[0]) if commands[0].words == (cmd_name,) else _Twig(cmd_name, commands)


class _Twig(_Branch):
    def __init__(self, word: str, commands: Sequence[Command]) -> None:
        table = noun_of(word)
        super().__init__(word, help=table.summaries.get(word) if table else None, params=_options(GLOBALS))
        self._leaves = {command.words[1]: command for command in commands}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._leaves)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = self._leaves.get(cmd_name)
        return None if command is None else _leaf(command)


def _leaf(command: Command) -> click.Command:
    def understood(**values: object) -> Ask:
        return Ask(command, fast_parser.blank(command) | values)

    return _Sections(
        command.words[-1],
        callback=understood,
        params=[*map(_argument, command.arguments), *_options((*command.options, *GLOBALS))],
        help=f"{command.summary}\n\n{command.description}",
        short_help=command.summary,
    )


class _Type(click.ParamType[object]):
    """A `Kind` as Click wants it."""

    def __init__(self, kind: Kind) -> None:
        self.name = kind.metavar
        self._kind = kind

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        if not isinstance(value, str):
            return value
        try:
            return self._kind.convert(value)
        except ValueError as wrong:
            return self.fail(f"{wrong}.", param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        if self._kind.metavar == "DIR":
            return [CompletionItem(incomplete, type="dir")]
        if self._kind.metavar == "FILE":
            return [CompletionItem(incomplete, type="file")]
        if self._kind.source:
            return _known(ctx, self._kind.source, incomplete)
        return [CompletionItem(one) for one in self._kind.choices if one.startswith(incomplete)]


def _known(ctx: click.Context, source: str, incomplete: str) -> list[CompletionItem]:
    """What the server knows, by what has been typed so far: options may stand before every word."""
    from quarterdeck.cli.shell_completion import offers

    typed: dict[str, object] = {}
    step: click.Context | None = ctx
    while step is not None:
        typed = {name: value for name, value in step.params.items() if value not in (None, False)} | typed
        step = step.parent
    return [CompletionItem(one.value, help=one.help) for one in offers(typed, source, incomplete)]


def _options(options: Sequence[Option]) -> list[click.Parameter]:
    return [_option(option) for option in options]


def _option(option: Option) -> click.Option:
    names = [name for name in (option.short, option.name, option.key) if name]
    if option.kind is None:
        return click.Option(names, is_flag=True, help=option.help)
    return click.Option(
        names,
        type=_Type(option.kind),
        metavar=option.kind.metavar,
        help=option.help,
        multiple=option.many,
        required=option.required,
    )


def _argument(argument: Argument) -> click.Argument:
    metavar = f"{argument.metavar}..." if argument.many else argument.metavar
    return click.Argument(
        [argument.key],
        type=_Type(argument.kind),
        metavar=metavar if argument.required else f"[{metavar}]",
        required=argument.required,
        nargs=-1 if argument.many else 1,
    )


def _version_option() -> click.Option:
    def show(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            click.echo(f"quarterdeck {__version__}")
            ctx.exit()

    return click.Option(
        ["--version"], is_flag=True, is_eager=True, expose_value=False, callback=show, help="Print the version."
    )
