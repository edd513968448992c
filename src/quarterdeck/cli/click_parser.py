"""The Click parser: help, shell completion and usage errors. It is built from the same table as the fast parser.

Click only parses: the callback of a Click command returns a `ParsedCommand`, as the fast parser does, and `main` runs
it.
"""

from __future__ import annotations

from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem, get_completion_class

from quarterdeck import __version__
from quarterdeck.cli import fast_parser
from quarterdeck.cli.command_table import GLOBAL_OPTIONS, Argument, Command, Option, ParamType, ParsedCommand
from quarterdeck.cli.errors import usage_error
from quarterdeck.cli.registry import MODULES, SECTIONS, load_commands, load_groups

COMPLETE_VARIABLE = "_QD_COMPLETE"
_CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_ROOT_HELP = """Coordinate fleets of AI agents.

Commands use the server of the data directory, and start it if it is not running. With --url they use the server at
that URL and never start one. Global options may be given before or after the command.
"""


def parse(argv: Sequence[str]) -> ParsedCommand | int:
    """Parse the command line. Returns the exit code instead if Click printed help or the version."""
    match = fast_parser.find_command(argv)
    args = [*match.command.words, *match.args] if match else list(argv) or ["--help"]
    if args[0] == "help":
        args = [*args[1:], "--help"]
    try:
        outcome: object = _RootGroup().main(args, prog_name="qd", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as no_args:
        raise usage_error(f"Give a command.\n\n{no_args.format_message()}") from None
    except click.UsageError as error:
        raise usage_error(_format_usage_error(error)) from None
    return outcome if isinstance(outcome, ParsedCommand) else 0


def complete(instruction: str) -> int:
    """Print completions. `instruction` is the value of `_QD_COMPLETE`, which the shell's completion script sets."""
    from click.shell_completion import shell_complete

    return shell_complete(_RootGroup(), {}, "qd", COMPLETE_VARIABLE, instruction)


def completion_script(shell: str) -> str:
    completion_class = get_completion_class(shell)
    assert completion_class is not None  # the command table allows only shells that Click supports
    return completion_class(_RootGroup(), {}, "qd", COMPLETE_VARIABLE).source()


def _format_usage_error(error: click.UsageError) -> str:
    message = error.format_message().rstrip()
    if message[-1:] not in ".?!":
        message += "."
    path = error.ctx.command_path if error.ctx else "qd"
    return f"{message} Try `{path} --help`."


class _SectionedCommand(click.Command):
    """A command whose help lists its own options first, then the global options in a separate section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        global_names = {option.name for option in GLOBAL_OPTIONS}
        own_rows: list[tuple[str, str]] = []
        global_rows: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            row = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if row is not None:
                (global_rows if global_names & set(param.opts) else own_rows).append(row)
        for title, rows in (("Options", own_rows), ("Global options", global_rows)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)


class _LazyGroup(_SectionedCommand, click.Group):
    """A group that suggests a similar command for an unknown one. Subclasses build commands only when needed."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if ctx.resilient_parsing or args[0].startswith("-") or self.get_command(ctx, args[0]):
            return super().resolve_command(ctx, args)
        from difflib import get_close_matches

        matches = get_close_matches(args[0], self.list_commands(ctx), n=1, cutoff=0.5)
        suggestion = f" Did you mean `{ctx.command_path} {matches[0]}`?" if matches else ""
        raise click.UsageError(f"Unknown command `{ctx.command_path} {args[0]}`.{suggestion}", ctx)


class _RootGroup(_LazyGroup):
    def __init__(self) -> None:
        super().__init__(
            "qd",
            help=_ROOT_HELP,
            params=[*_click_options(GLOBAL_OPTIONS), _version_option()],
            context_settings=dict(_CONTEXT_SETTINGS),
        )

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(MODULES)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in SECTIONS.items():
            commands = [(word, self.get_command(ctx, word)) for word in section]
            with formatter.section(title):
                formatter.write_dl(
                    [(word, command.get_short_help_str(limit=80)) for word, command in commands if command]
                )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        commands = load_commands(cmd_name)
        if not commands:
            return None
        return (
            _build_click_command(commands[0]) if commands[0].words == (cmd_name,) else _CommandGroup(cmd_name, commands)
        )


class _CommandGroup(_LazyGroup):
    def __init__(self, word: str, commands: Sequence[Command]) -> None:
        [summary] = [group.summary for group in load_groups(word) if group.name == word]
        super().__init__(word, help=summary, params=_click_options(GLOBAL_OPTIONS))
        self._commands = {command.words[1]: command for command in commands}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = self._commands.get(cmd_name)
        return None if command is None else _build_click_command(command)


def _build_click_command(command: Command) -> click.Command:
    def to_parsed_command(**values: object) -> ParsedCommand:
        return ParsedCommand(command, fast_parser.empty_values(command) | values)

    return _SectionedCommand(
        command.words[-1],
        callback=to_parsed_command,
        params=[*map(_click_argument, command.arguments), *_click_options((*command.options, *GLOBAL_OPTIONS))],
        help=f"{command.summary}\n\n{command.description}",
        short_help=command.summary,
    )


class _ClickParamType(click.ParamType[object]):
    """Adapts a `ParamType` of the command table to Click."""

    def __init__(self, param_type: ParamType) -> None:
        self.name = param_type.metavar
        self._type = param_type

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        if not isinstance(value, str):
            return value
        try:
            return self._type.parse(value)
        except ValueError as error:
            return self.fail(f"{error}.", param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        if self._type.metavar == "DIR":
            return [CompletionItem(incomplete, type="dir")]
        if self._type.metavar == "FILE":
            return [CompletionItem(incomplete, type="file")]
        if self._type.completion_source:
            return _server_completions(ctx, self._type.completion_source, incomplete)
        return [CompletionItem(choice) for choice in self._type.choices if choice.startswith(incomplete)]


def _server_completions(ctx: click.Context, source: str, incomplete: str) -> list[CompletionItem]:
    """Load completions with the options typed so far at every level: a global option may precede any word."""
    from quarterdeck.cli.shell_completion import complete_from_server

    typed_values: dict[str, object] = {}
    level: click.Context | None = ctx
    while level is not None:
        typed_values = {
            name: value for name, value in level.params.items() if value not in (None, False)
        } | typed_values
        level = level.parent
    return [
        CompletionItem(completion.value, help=completion.help)
        for completion in complete_from_server(typed_values, source, incomplete)
    ]


def _click_options(options: Sequence[Option]) -> list[click.Parameter]:
    return [_click_option(option) for option in options]


def _click_option(option: Option) -> click.Option:
    names = [name for name in (option.short, option.name, option.key) if name]
    if option.type is None:
        return click.Option(names, is_flag=True, help=option.help)
    return click.Option(
        names,
        type=_ClickParamType(option.type),
        metavar=option.type.metavar,
        help=option.help,
        multiple=option.many,
        required=option.required,
    )


def _click_argument(argument: Argument) -> click.Argument:
    metavar = f"{argument.metavar}..." if argument.many else argument.metavar
    return click.Argument(
        [argument.key],
        type=_ClickParamType(argument.type),
        metavar=metavar if argument.required else f"[{metavar}]",
        required=argument.required,
        nargs=-1 if argument.many else 1,
    )


def _version_option() -> click.Option:
    def print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            click.echo(f"quarterdeck {__version__}")
            ctx.exit()

    return click.Option(
        ["--version"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=print_version,
        help="Print the version.",
    )
