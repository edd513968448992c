"""The two parsers: what each understands, and that they never understand different things."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from quarterdeck.cli import click_parser, fast_parser
from quarterdeck.cli.command_table import GLOBAL_OPTIONS, Command, ParsedCommand
from quarterdeck.cli.registry import MODULES, commands_of
from quarterdeck.core.errors import Problem


def thinly(*argv: str) -> ParsedCommand | None:
    found = fast_parser.find_command(argv)
    return fast_parser.parse(found.command, found.rest) if found else None


def fully(*argv: str) -> ParsedCommand:
    ask = click_parser.parse(argv)
    assert isinstance(ask, ParsedCommand)
    return ask


def mistake(*argv: str) -> str:
    assert thinly(*argv) is None, "the thin parser never judges a mistake"
    with pytest.raises(Problem) as told:
        click_parser.parse(argv)
    assert told.value.exit_code == 2
    return told.value.detail


def every_command() -> list[Command]:
    return [command for word in MODULES for command in commands_of(word)]


def test_a_command_is_found_by_its_words() -> None:
    ask = thinly("session", "show", "abc")
    assert ask is not None
    assert ask.command.words == ("session", "show")
    assert ask.values["id"] == "abc"


@pytest.mark.parametrize(
    "argv",
    [
        ("--zone", "z", "session", "list", "--json"),
        ("session", "--zone", "z", "list", "--json"),
        ("--json", "session", "list", "--zone=z"),
        ("session", "list", "--zone", "other", "--json", "--zone", "z"),
    ],
)
def test_the_options_of_every_command_may_stand_anywhere_and_the_last_one_counts(argv: tuple[str, ...]) -> None:
    for ask in (thinly(*argv), fully(*argv)):
        assert ask is not None
        assert (ask.values["zone"], ask.values["json"]) == ("z", True)


def test_a_noun_alone_means_its_default_command() -> None:
    for argv in (("events",), ("events", "--limit", "5"), ("events", "--json"), ("events", "--json", "list")):
        ask = thinly(*argv)
        assert ask is not None
        assert ask.command.words == ("events", "list")


def test_what_may_be_repeated_is_gathered_in_order() -> None:
    ask = thinly("session", "spawn", "--app", "a", "--capability", "x", "--capability=y")
    assert ask is not None
    assert ask.values["capability"] == ("x", "y")


def test_an_argument_may_take_all_words_that_are_left() -> None:
    for ask in (thinly("task", "wait", "a", "--json", "b", "c"), fully("task", "wait", "a", "--json", "b", "c")):
        assert ask is not None
        assert (ask.values["ids"], ask.values["json"]) == (("a", "b", "c"), True)
    assert "ID" in mistake("task", "wait")


def test_what_the_wire_writes_in_capitals_may_be_typed_in_any_letters() -> None:
    for typed in ("running", "RUNNING", "Running"):
        ask = thinly("task", "list", "--status", typed)
        assert ask is not None
        assert ask.values["status"] == "RUNNING"


def test_times_may_bear_a_unit() -> None:
    for text, seconds in (("90", 90), ("90s", 90), ("15m", 900), ("2h", 7200), ("1d", 86400)):
        ask = thinly("session", "spawn", "--app", "a", "--ttl", text)
        assert ask is not None
        assert ask.values["ttl"] == seconds


def test_after_two_dashes_everything_is_a_word() -> None:
    ask = thinly("session", "show", "--", "-id")
    assert ask is not None
    assert ask.values["id"] == "-id"


def test_limits_are_numbers_or_the_default() -> None:
    ask = thinly("zone", "quotas", "z", "--set", "max_depth=5", "--set", "max_children=default")
    assert ask is not None
    assert ask.values["set"] == (("max_depth", 5), ("max_children", None))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("sesion",), "Did you mean `qd session`?"),
        (("session", "shwo", "x"), "Did you mean `qd session show`?"),
        (("xyzzy",), "There is no command `qd xyzzy`"),
        (("session", "show"), "ID"),
        (("session", "show", "a", "b"), "unexpected extra argument"),
        (("session", "show", "a b"), "not an id"),
        (("session", "show", ""), "not an id"),
        (("session", "spawn"), "--app"),
        (("session", "spawn", "--app"), "requires an argument"),
        (("session", "spawn", "--app", "a", "--metadata", "[]"), "not a JSON object"),
        (("session", "spawn", "--app", "a", "--metadata", "{"), "not JSON"),
        (("session", "spawn", "--app", "a", "--ttl", "soon"), "not a time"),
        (("session", "spawn", "--app", "a", "--kind", "big"), "not one of"),
        (("session", "list", "--limit", "-1"), "not a whole number"),
        (("session", "list", "--json=yes"), "does not take a value"),
        (("session", "list", "--limt", "1"), "--limit"),
        (("--zonne", "z", "session", "list"), "--zone"),
        (("--timeout", "0", "status"), "above 0"),
        (("zone", "quotas", "--set", "max_depth"), "NAME=NUMBER"),
        (("completion", "tcsh"), "not one of"),
        (("up", "--prot", "1"), "--port"),
        (("session",), "Which command?"),
    ],
)
def test_a_mistake_is_told_in_a_sentence_that_helps(argv: tuple[str, ...], said: str) -> None:
    assert said in mistake(*argv)


@pytest.mark.parametrize("argv", [(), ("--help",), ("-h",), ("help",), ("session", "-h"), ("help", "session", "show")])
def test_help_is_printed_and_is_no_failure(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert click_parser.parse(argv) == 0
    assert "Usage: qd" in capsys.readouterr().out


@pytest.mark.parametrize("command", every_command(), ids=lambda command: " ".join(command.words))
def test_every_command_has_help_that_names_its_options(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert click_parser.parse([*command.words, "--help"]) == 0
    told = capsys.readouterr().out
    assert command.summary.split()[0] in told
    assert all(option.name in told for option in (*command.options, *GLOBAL_OPTIONS))


@pytest.mark.parametrize("command", every_command(), ids=lambda command: " ".join(command.words))
def test_no_option_of_a_command_takes_the_place_of_another(command: Command) -> None:
    options = [*GLOBAL_OPTIONS, *command.options]
    keys = [option.key for option in options] + [argument.key for argument in command.arguments]
    names = [name for option in options for name in (option.name, option.short) if name]
    assert len(set(keys)) == len(keys)
    assert len(set(names)) == len(names)


VALUES = ["", "a", "z", "5", "-1", "-", "--", "90s", "{}", '{"a":1}', "max_depth=5", "bash", "active", "--json", "ü"]


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """Command lines that are mostly right: the words of a command among its options, arguments and some
    rubbish."""
    command = draw(st.sampled_from(every_command()))
    options = [*GLOBAL_OPTIONS, *command.options]
    names = [name for option in options for name in (option.name, option.short) if name]
    loose = st.one_of(
        st.sampled_from(names).map(lambda name: [name]),
        st.tuples(st.sampled_from(names), st.sampled_from(VALUES)).map(list),
        st.tuples(st.sampled_from(names), st.sampled_from(VALUES)).map(lambda pair: ["=".join(pair)]),
        st.tuples(st.sampled_from(names), st.sampled_from(VALUES)).map(lambda pair: ["".join(pair)]),
        st.sampled_from([*VALUES, "--bogus", "list", "session"]).map(lambda value: [value]),
    )
    required = [piece for option in options if option.required for piece in (option.name, "a")]
    wanted = ["a"] * sum(argument.required for argument in command.arguments)
    between = [draw(st.lists(loose, max_size=2)) for _ in range(len(command.words) + 1)]
    line = [piece for pieces in between[0] for piece in pieces]
    for word, pieces in zip(command.words, between[1:], strict=True):
        line += [word, *(piece for one in pieces for piece in one)]
    return [*line, *required, *wanted]


@settings(max_examples=400, deadline=None)
@given(lines())
def test_what_the_thin_parser_understands_click_understands_the_same(argv: list[str]) -> None:
    ask = thinly(*argv)
    if ask is not None:
        told = click_parser.parse(argv)
        assert isinstance(told, ParsedCommand)
        assert told.command.words == ask.command.words
        assert dict(told.values) == dict(ask.values)


@settings(max_examples=200, deadline=None)
@given(lines())
def test_whatever_is_typed_ends_in_a_command_or_in_a_sentence(argv: list[str]) -> None:
    try:
        outcome = click_parser.parse(argv)
    except Problem as problem:
        assert problem.exit_code == 2
        assert problem.detail
    else:
        assert isinstance(outcome, ParsedCommand) or outcome == 0
