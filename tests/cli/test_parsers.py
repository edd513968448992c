"""The fast parser and the click parser: what each accepts, and that they agree."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from quarterdeck.cli import click_parser, fast_parser
from quarterdeck.cli.command_table import GLOBAL_OPTIONS, Command, ParsedCommand
from quarterdeck.cli.registry import MODULES, load_commands
from quarterdeck.core.errors import Problem


def parse_fast(*argv: str) -> ParsedCommand | None:
    found = fast_parser.find_command(argv)
    return fast_parser.parse(found.command, found.args) if found else None


def parse_with_click(*argv: str) -> ParsedCommand:
    outcome = click_parser.parse(argv)
    assert isinstance(outcome, ParsedCommand)
    return outcome


def usage_error(*argv: str) -> str:
    assert parse_fast(*argv) is None, "the fast parser leaves invalid lines to click"
    with pytest.raises(Problem) as caught:
        click_parser.parse(argv)
    assert caught.value.exit_code == 2
    return caught.value.detail


def every_command() -> list[Command]:
    return [command for word in MODULES for command in load_commands(word)]


def test_command_is_found_by_its_words() -> None:
    parsed = parse_fast("session", "show", "abc")
    assert parsed is not None
    assert parsed.command.words == ("session", "show")
    assert parsed.values["id"] == "abc"


@pytest.mark.parametrize(
    "argv",
    [
        ("--zone", "z", "session", "list", "--json"),
        ("session", "--zone", "z", "list", "--json"),
        ("--json", "session", "list", "--zone=z"),
        ("session", "list", "--zone", "other", "--json", "--zone", "z"),
    ],
)
def test_global_options_are_accepted_anywhere_and_the_last_wins(argv: tuple[str, ...]) -> None:
    for parsed in (parse_fast(*argv), parse_with_click(*argv)):
        assert parsed is not None
        assert (parsed.values["zone"], parsed.values["json"]) == ("z", True)


def test_noun_alone_means_its_default_command() -> None:
    for argv in (("events",), ("events", "--limit", "5"), ("events", "--json"), ("events", "--json", "list")):
        parsed = parse_fast(*argv)
        assert parsed is not None
        assert parsed.command.words == ("events", "list")


def test_repeated_options_are_collected_in_order() -> None:
    parsed = parse_fast("session", "spawn", "--app", "a", "--capability", "x", "--capability=y")
    assert parsed is not None
    assert parsed.values["capability"] == ("x", "y")


def test_variadic_argument_takes_the_remaining_words() -> None:
    for parsed in (
        parse_fast("task", "wait", "a", "--json", "b", "c"),
        parse_with_click("task", "wait", "a", "--json", "b", "c"),
    ):
        assert parsed is not None
        assert (parsed.values["ids"], parsed.values["json"]) == (("a", "b", "c"), True)
    assert "ID" in usage_error("task", "wait")


def test_uppercase_choices_are_case_insensitive() -> None:
    for typed in ("running", "RUNNING", "Running"):
        parsed = parse_fast("task", "list", "--status", typed)
        assert parsed is not None
        assert parsed.values["status"] == "RUNNING"


def test_durations_accept_a_unit() -> None:
    for text, seconds in (("90", 90), ("90s", 90), ("15m", 900), ("2h", 7200), ("1d", 86400)):
        parsed = parse_fast("session", "spawn", "--app", "a", "--ttl", text)
        assert parsed is not None
        assert parsed.values["ttl"] == seconds


def test_double_dash_ends_the_options() -> None:
    parsed = parse_fast("session", "show", "--", "-id")
    assert parsed is not None
    assert parsed.values["id"] == "-id"


def test_limits_are_numbers_or_default() -> None:
    parsed = parse_fast("zone", "quotas", "z", "--set", "max_depth=5", "--set", "max_children=default")
    assert parsed is not None
    assert parsed.values["set"] == (("max_depth", 5), ("max_children", None))


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("sesion",), "Did you mean `qd session`?"),
        (("session", "shwo", "x"), "Did you mean `qd session show`?"),
        (("no-such",), "Unknown command `qd no-such`"),
        (("session", "show"), "ID"),
        (("session", "show", "a", "b"), "unexpected extra argument"),
        (("session", "show", "a b"), "not an id"),
        (("session", "show", ""), "not an id"),
        (("session", "spawn"), "--app"),
        (("session", "spawn", "--app"), "requires an argument"),
        (("session", "spawn", "--app", "a", "--metadata", "[]"), "not a JSON object"),
        (("session", "spawn", "--app", "a", "--metadata", "{"), "not valid JSON"),
        (("session", "spawn", "--app", "a", "--ttl", "soon"), "not a duration"),
        (("session", "spawn", "--app", "a", "--kind", "big"), "Use one of"),
        (("session", "list", "--limit", "-1"), "not an integer"),
        (("session", "list", "--json=yes"), "does not take a value"),
        (("session", "list", "--limt", "1"), "--limit"),
        (("--zonne", "z", "session", "list"), "--zone"),
        (("--timeout", "0", "status"), "positive number"),
        (("zone", "quotas", "--set", "max_depth"), "NAME=NUMBER"),
        (("completion", "tcsh"), "Use one of"),
        (("up", "--prot", "1"), "--port"),
        (("session",), "Give a command."),
    ],
)
def test_usage_error_explains_the_mistake(argv: tuple[str, ...], expected: str) -> None:
    assert expected in usage_error(*argv)


@pytest.mark.parametrize("argv", [(), ("--help",), ("-h",), ("help",), ("session", "-h"), ("help", "session", "show")])
def test_help_is_printed_with_exit_code_0(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert click_parser.parse(argv) == 0
    assert "Usage: qd" in capsys.readouterr().out


@pytest.mark.parametrize("command", every_command(), ids=lambda command: " ".join(command.words))
def test_help_of_every_command_names_its_options(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert click_parser.parse([*command.words, "--help"]) == 0
    output = capsys.readouterr().out
    assert command.summary.split()[0] in output
    assert all(option.name in output for option in (*command.options, *GLOBAL_OPTIONS))


@pytest.mark.parametrize("command", every_command(), ids=lambda command: " ".join(command.words))
def test_option_names_and_keys_are_unique_per_command(command: Command) -> None:
    options = [*GLOBAL_OPTIONS, *command.options]
    keys = [option.key for option in options] + [argument.key for argument in command.arguments]
    names = [name for option in options for name in (option.name, option.short) if name]
    assert len(set(keys)) == len(keys)
    assert len(set(names)) == len(names)


VALUES = ["", "a", "z", "5", "-1", "-", "--", "90s", "{}", '{"a":1}', "max_depth=5", "bash", "active", "--json", "ü"]


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Generates mostly valid command lines: the words of a command with options, arguments and invalid values."""
    command = draw(st.sampled_from(every_command()))
    options = [*GLOBAL_OPTIONS, *command.options]
    names = [name for option in options for name in (option.name, option.short) if name]
    extra = st.one_of(
        st.sampled_from(names).map(lambda name: [name]),
        st.tuples(st.sampled_from(names), st.sampled_from(VALUES)).map(list),
        st.tuples(st.sampled_from(names), st.sampled_from(VALUES)).map(lambda pair: ["=".join(pair)]),
        st.tuples(st.sampled_from(names), st.sampled_from(VALUES)).map(lambda pair: ["".join(pair)]),
        st.sampled_from([*VALUES, "--no-such", "list", "session"]).map(lambda value: [value]),
    )
    required = [piece for option in options if option.required for piece in (option.name, "a")]
    arguments = ["a"] * sum(argument.required for argument in command.arguments)
    between = [draw(st.lists(extra, max_size=2)) for _ in range(len(command.words) + 1)]
    line = [piece for pieces in between[0] for piece in pieces]
    for word, pieces in zip(command.words, between[1:], strict=True):
        line += [word, *(piece for group in pieces for piece in group)]
    return [*line, *required, *arguments]


@settings(max_examples=400, deadline=None)
@given(command_lines())
def test_fast_parser_and_click_agree(argv: list[str]) -> None:
    parsed = parse_fast(*argv)
    if parsed is not None:
        outcome = click_parser.parse(argv)
        assert isinstance(outcome, ParsedCommand)
        assert outcome.command.words == parsed.command.words
        assert dict(outcome.values) == dict(parsed.values)


@settings(max_examples=200, deadline=None)
@given(command_lines())
def test_any_command_line_is_parsed_or_refused_with_a_message(argv: list[str]) -> None:
    try:
        outcome = click_parser.parse(argv)
    except Problem as problem:
        assert problem.exit_code == 2
        assert problem.detail
    else:
        assert isinstance(outcome, ParsedCommand) or outcome == 0
