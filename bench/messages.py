"""Messages between the members of a fleet: the commands, compared with cafleet, and the server under load."""

from __future__ import annotations

from bench import message_commands, message_load
from bench.message_commands import OUR_PROGRAM, PEER_PROGRAM, PYTHON_PASS, REPEATS, VERBS, CommandTimes
from bench.message_load import ENGINES, SEND_NAME, Runs
from bench.peers import virtualenvs
from bench.results import Figure, Findings, Line, round_ratios
from bench.spawn import SQLITE_COMMITS
from bench.testbed import Testbed

PEER_MAX_RATIO, HISTORY_MAX_RATIO = 0.1, 1.3
PEER_NAME = f"{PEER_PROGRAM} {virtualenvs.pinned_version(PEER_PROGRAM)}"


def measure(testbed: Testbed) -> Findings:
    command_times = message_commands.measure(testbed)
    runs = message_load.measure(testbed)
    return Findings(
        "Messages between the members of a fleet",
        lines=[Line(name, line_runs) for name, line_runs in runs.items()],
        figures=[*_command_figures(command_times), *_load_figures(testbed, runs)],
        notes=[
            f"Medians of {REPEATS} alternating runs: "
            + ", ".join(f"`{name}` {command_times.median_ms(name):.1f} ms" for name in command_times.seconds)
            + f". The limit is three times `{PYTHON_PASS}` plus 60 ms; the goal is twice plus 20 ms.",
            _peer_note(command_times),
            "A message has a body of 200 bytes; the response follows a durable commit. No member has a pane: a second "
            "command writes that into the receipt of each message immediately afterwards. After each run there must be "
            "as many messages as were acknowledged, each with its receipt, and each broadcast must have one message "
            f"for each of {message_load.RECIPIENTS} members.",
            "Empty polls: two servers, each with its own database, polled in turn over one connection. The history "
            "was sent to the polling member and acknowledged; the servers prepared their statements before it.",
        ],
    )  # fmt: skip


def _command_figures(command_times: CommandTimes) -> list[Figure]:
    pass_ms = command_times.median_ms(PYTHON_PASS)
    figures = [
        Figure(
            f"qd message {verb}",
            [command_times.median_ms(f"{OUR_PROGRAM} {verb}")],
            "ms",
            3 * pass_ms + 60,
            2 * pass_ms + 20,
            at_most=True,
        )
        for verb in VERBS
    ]
    if not command_times.peer_problem:
        figures += [
            Figure(
                f"qd message {verb} / {PEER_NAME}",
                [command_times.median_ms(f"{OUR_PROGRAM} {verb}") / command_times.median_ms(f"{PEER_PROGRAM} {verb}")],
                "×",
                PEER_MAX_RATIO,
                at_most=True,
            )
            for verb in VERBS
        ]
    return figures


def _peer_note(command_times: CommandTimes) -> str:
    if command_times.peer_problem:
        return f"Not measured: {PEER_NAME}: {command_times.peer_problem}. The only control is `{PYTHON_PASS}`."
    return (
        f"{PEER_NAME}, from PyPI in its own virtual environment, runs the same commands with the same results. It has "
        "no server and writes to its own SQLite file; `qd` calls a server, also on SQLite."
    )


def _load_figures(testbed: Testbed, runs: Runs) -> list[Figure]:
    rounds = testbed.plan.rounds
    figures = [
        Figure(
            "Sends, SQLite / its own one-row commits", round_ratios(runs[SEND_NAME], runs[SQLITE_COMMITS], rounds), "×"
        ),
        Figure("Sends, SQLite", [run.rate for run in runs[SEND_NAME]], "messages/s"),
    ]
    for title, name_on in (
        (f"A broadcast to {message_load.RECIPIENTS} members", message_load.broadcast_name),
        (f"A poll with {message_load.PENDING} unread messages", message_load.poll_name),
    ):
        figures += [
            Figure(f"{title}, {engine}, p50", [run.p50_ms or 0.0 for run in runs[name_on(engine)]], "ms", at_most=True)
            for engine in ENGINES
        ]
    for engine in ENGINES:
        empty, history = message_load.empty_poll_name(engine), message_load.history_poll_name(testbed, engine)
        # By rates: with one connection the rate is the inverse of the latency.
        cost_ratios = round_ratios(runs[empty], runs[history], rounds)
        title = f"An empty poll with a history / without, {engine}"
        figures.append(Figure(title, cost_ratios, "×", HISTORY_MAX_RATIO, at_most=True))
    return figures
