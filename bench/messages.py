"""Messages between the members of a fleet: what agents type all day, beside the peer whose commands these were, and
what the server does with many of them."""

from __future__ import annotations

from bench import spoken, typed
from bench.peers import environment
from bench.results import Figure, Findings, Line, ratios
from bench.spawn import SQLITE_COMMITS
from bench.spoken import ENGINES, SENDS, Runs
from bench.stage import Stage
from bench.typed import OURS, PASS, PEER, TIMES, VERBS, Typed

PEER_MOST, HISTORY_MOST = 0.1, 1.3
PEER_NAME = f"{PEER} {environment.version_of(PEER)}"


def measure(stage: Stage) -> Findings:
    told = typed.measure(stage)
    runs = spoken.measure(stage)
    return Findings(
        "Messages between the members of a fleet",
        lines=[Line(name, found) for name, found in runs.items()],
        figures=[*_typed(told), *_spoken(stage, runs)],
        notes=[
            f"Medians of {TIMES}, taken in turn: "
            + ", ".join(f"`{name}` {told.ms(name):.1f} ms" for name in told.seconds)
            + f". Allowed are three times `{PASS}` and 60 ms more; the goal is twice, and 20 ms more.",
            _peer_note(told),
            "A message has a body of 200 bytes, and is answered after a durable commit. Nobody here has a pane, which "
            "the receipt of each message says: it is written by a command of its own, right after. After each run "
            "there must be as many messages as were acknowledged, each with its receipt, and of each broadcast one to "
            f"each of {spoken.RECIPIENTS}.",
            "Empty polls: two servers, each with a database of its own, asked in turn by one caller. The history was "
            "sent to the one who polls, and acknowledged; the servers had prepared their statements before.",
        ],
    )  # fmt: skip


def _typed(told: Typed) -> list[Figure]:
    own = told.ms(PASS)
    figures = [
        Figure(f"qd message {verb}", [told.ms(f"{OURS} {verb}")], "ms", 3 * own + 60, 2 * own + 20, at_most=True)
        for verb in VERBS
    ]
    if not told.absent:
        figures += [
            Figure(
                f"qd message {verb} / {PEER_NAME}",
                [told.ms(f"{OURS} {verb}") / told.ms(f"{PEER} {verb}")],
                "×",
                PEER_MOST,
                at_most=True,
            )
            for verb in VERBS
        ]
    return figures


def _peer_note(told: Typed) -> str:
    if told.absent:
        return f"Not measured: {PEER_NAME}: {told.absent}. So there is no other control than `{PASS}`."
    return (
        f"{PEER_NAME}, from PyPI in an environment of its own, is called with the same words and finds the same. It "
        "has no server, and writes to its own SQLite file; ours asks a server, on SQLite as well."
    )


def _spoken(stage: Stage, runs: Runs) -> list[Figure]:
    rounds = stage.plan.rounds
    figures = [
        Figure("Sends, SQLite / its own one-row commits", ratios(runs[SENDS], runs[SQLITE_COMMITS], rounds), "×"),
        Figure("Sends, SQLite", [run.rate for run in runs[SENDS]], "messages/s"),
    ]
    for title, name_on in (
        (f"A broadcast to {spoken.RECIPIENTS} members", spoken.broadcasts_on),
        (f"A poll with {spoken.PENDING} pending", spoken.polls_on),
    ):
        figures += [
            Figure(f"{title}, {engine}, p50", [run.p50_ms or 0.0 for run in runs[name_on(engine)]], "ms", at_most=True)
            for engine in ENGINES
        ]
    for engine in ENGINES:
        empty, history = spoken.empty_on(engine), spoken.history_on(stage, engine)
        # By their rates: one caller, one after the other, so a rate is the time that each takes.
        cost = ratios(runs[empty], runs[history], rounds)
        title = f"An empty poll with a history / without, {engine}"
        figures.append(Figure(title, cost, "×", HISTORY_MOST, at_most=True))
    return figures
