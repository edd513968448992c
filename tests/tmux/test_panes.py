"""A real tmux: what is typed, into which pane, and into which never."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from quarterdeck.tmux import commands, terminate
from quarterdeck.tmux.pane_lock import lock_pane
from quarterdeck.tmux.panes import PaneChanged, PaneInfo, Tmux, TmuxError
from quarterdeck.tmux.subprocess_run import ProgramError, ProgramResult, run
from tests.support.eventually import eventually, eventually_sync
from tests.support.tmux import TmuxServer, is_alive, needs_tmux, type_line

pytestmark = needs_tmux
NASTY = (
    'it\'s "quoted" `touch ticked` $(touch dollared) ${HOME} #{pid} #(touch hashed) %7 ; touch semicoloned ;\n'
    "second line\x1b[201~\rtouch escaped\r\x1b]0;t\x07 \\ \\; {a,b} ~ ü 漢字 👩\u200d🔬 end;"
)
TEXT = (
    'it\'s "quoted" `touch ticked` $(touch dollared) ${HOME} #{pid} #(touch hashed) %7 ; touch semicoloned ; '
    "second line touch escaped \\ \\; {a,b} ~ ü 漢字 👩\u200d🔬 end;"
)


# -- looking -----------------------------------------------------------------------------------------------------


async def test_all_panes_are_seen_with_one_call(
    shared_tmux: TmuxServer, tmux: Tmux, monkeypatch: pytest.MonkeyPatch
) -> None:
    pane = shared_tmux.new_pane()
    pid = shared_tmux.wait_for_agent(pane)
    calls = spied(monkeypatch)
    seen = await tmux.panes()
    assert len(calls) == 1
    assert sorted(seen) == sorted(shared_tmux.list_panes())
    assert (seen[pane].pid, seen[pane].server_pid) == (pid, shared_tmux.pid)
    assert (seen[pane].session, seen[pane].is_dead, seen[pane].takes_input) == ("main", False, True)
    assert seen[pane].tty.startswith("/dev/")
    assert abs(seen[pane].server_started - time.time()) < 600


async def test_a_server_that_is_not_there_has_no_panes(tmp_path: Path) -> None:
    nowhere = Tmux(str(tmp_path / "none"))
    assert await nowhere.panes() == {}
    left = tmp_path / "left"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(left))
    assert await Tmux(str(left)).panes() == {}


async def test_what_is_no_socket_of_this_user_is_not_spoken_to(
    tmp_path: Path, shared_tmux: TmuxServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(TmuxError, match="not a socket of this user"):
        await Tmux(str(file)).panes()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(TmuxError, match="not a socket of this user"):
        await Tmux(shared_tmux.socket).panes()


async def test_a_program_cannot_pass_itself_off_as_another_pane(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    forged = f"x\n%0:@0:1:{shared_tmux.pid}:0:0:0:/dev/null:main:claude"
    pane = shared_tmux.new_pane("python3", "-c", f"import os; os.execvp('cat', [{forged!r}])")
    front = ("display-message", "-p", "-t", pane, "#{pane_current_command}")
    eventually_sync(lambda: shared_tmux.run_tmux(*front).startswith("x"), "the program had its odd name")
    seen = await tmux.panes()
    assert sorted(seen) == sorted(shared_tmux.list_panes())
    assert seen["%0"].pid == shared_tmux.pid_of("%0")


async def test_a_server_that_hangs_is_given_up_on_in_time(tmux_server: TmuxServer) -> None:
    os.kill(tmux_server.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(TmuxError, match="did not answer within"):
            await Tmux(tmux_server.socket, 0.2).panes()
        assert time.monotonic() - began < 5
    finally:
        os.kill(tmux_server.pid, signal.SIGCONT)


async def test_ids_that_are_none_are_refused(tmux: Tmux) -> None:
    for odd in ("", "main", "%", "%1;kill-server", "=main:0.0", "@1"):
        with pytest.raises(TmuxError, match="not the id of a pane"):
            await tmux.type_line(PaneInfo(odd, "main", "@0", 1, "claude", False), "hello")
        with pytest.raises(TmuxError, match="not the id of a pane"):
            await tmux.kill(odd)
    with pytest.raises(TmuxError, match="not the id of a window"):
        await tmux.split("%1", ["claude", "x"], {})


# -- typing ------------------------------------------------------------------------------------------------------


async def test_a_nasty_body_arrives_as_text_in_brackets_and_enter_comes_apart(
    shared_tmux: TmuxServer, tmux: Tmux
) -> None:
    pane = shared_tmux.new_pane(behaviour="raw")
    pid = shared_tmux.wait_for_agent(pane)
    await type_line(tmux, pane, NASTY)
    await heard(shared_tmux, pid, "\r")
    told = shared_tmux.wait_for_agent_log(pid)
    assert told.raw == f"\x1b[200~{TEXT}\x1b[201~\r"
    assert told.pieces[-1] == "\r"
    assert not list(shared_tmux.home.glob("*ed"))


async def test_a_nasty_body_is_one_line_to_who_knows_no_brackets(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    pane = shared_tmux.new_pane()
    pid = shared_tmux.wait_for_agent(pane)
    await type_line(tmux, pane, NASTY)
    await eventually_line(shared_tmux, pid)
    assert shared_tmux.wait_for_agent_log(pid).lines == [TEXT]
    assert shared_tmux.run_tmux("list-buffers") == ""


async def test_lines_that_several_type_at_once_stay_lines_of_their_own(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    pane = shared_tmux.new_pane()
    pid = shared_tmux.wait_for_agent(pane)
    lines = [f"line {number}" for number in range(4)]
    # Each by a `Tmux` of its own, as the notifier, the station and the monitor have.
    await asyncio.gather(*(type_line(Tmux(tmux.socket), pane, line) for line in lines))

    async def all_heard() -> bool:
        return len(shared_tmux.wait_for_agent_log(pid).lines) >= len(lines)

    await eventually(all_heard, "all lines were heard")
    assert sorted(shared_tmux.wait_for_agent_log(pid).lines) == lines


async def test_what_is_typed_without_enter_waits_for_its_turn_as_well(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    pane, other = shared_tmux.new_pane(behaviour="raw"), shared_tmux.new_pane()
    pid, elsewhere = shared_tmux.wait_for_agent(pane), shared_tmux.wait_for_agent(other)
    seen = (await tmux.panes())[pane]
    async with lock_pane(tmux.socket, pane, 5):
        waits = asyncio.create_task(tmux.type_line(seen, "half a line", press_enter=False))
        await type_line(tmux, other, "a line, meanwhile")
        await eventually_line(shared_tmux, elsewhere)
        assert shared_tmux.wait_for_agent_log(pid).raw == ""
    await waits
    await heard(shared_tmux, pid, "half a line\x1b[201~")


async def test_nothing_is_typed_when_a_shell_has_taken_the_agents_place(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    pane = shared_tmux.new_pane(behaviour="shell")
    shared_tmux.wait_for_agent(pane)
    seen = (await tmux.panes())[pane]
    await type_line(tmux, pane, "/exit")
    await eventually_front(shared_tmux, pane, "sh")
    for text, enters in (("touch executed", True), ("touch executed", False), ("", True)):
        with pytest.raises(PaneChanged):
            await tmux.type_line(seen, text, press_enter=enters)
    assert "touch" not in shared_tmux.capture(pane)
    assert shared_tmux.run_tmux("list-buffers") == ""


async def test_enter_is_not_typed_when_the_agent_left_after_the_text(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    pane = shared_tmux.new_pane(behaviour="shell")
    shared_tmux.wait_for_agent(pane)

    def leaves() -> bool:
        shared_tmux.run_tmux("send-keys", "-t", pane, "C-u", "/exit", "Enter")
        front = ("display-message", "-p", "-t", pane, "#{pane_current_command}")
        eventually_sync(lambda: shared_tmux.run_tmux(*front) == "sh", "a shell was in front")
        shared_tmux.run_tmux("send-keys", "-t", pane, "touch executed")
        return True

    seen = (await tmux.panes())[pane]
    with pytest.raises(PaneChanged):
        await tmux.type_line(seen, "hello", is_still_ready=leaves)
    # Whatever stood at the prompt is there still, and a command after it says that none before it was run.
    shared_tmux.run_tmux("send-keys", "-t", pane, "C-u", "echo asked-$((40+2))", "Enter")
    eventually_sync(lambda: "asked-42" in shared_tmux.capture(pane), "the shell answered")
    assert not (shared_tmux.home / "executed").exists()
    with pytest.raises(PaneChanged):
        await tmux.type_line((await tmux.panes())[shared_tmux.pane], "hello", is_still_ready=lambda: False)


async def test_panes_that_are_synchronized_with_the_agents_hear_nothing(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    pane = shared_tmux.new_pane()
    pid = shared_tmux.wait_for_agent(pane)
    command = ("env", "FAKE=raw", str(shared_tmux.bin / "codex"), "x")
    beside = shared_tmux.run_tmux("split-window", "-d", "-P", "-F", "#{pane_id}", "-t", pane, "--", *command)
    other = shared_tmux.wait_for_agent(beside)
    shared_tmux.run_tmux("set-option", "-w", "-t", pane, "synchronize-panes", "on")
    await type_line(tmux, pane, "for one only")
    await eventually_line(shared_tmux, pid)
    assert shared_tmux.wait_for_agent_log(other).raw == ""


async def test_who_scrolls_in_a_pane_is_not_disturbed_and_its_agent_hears(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    pane = shared_tmux.new_pane()
    pid = shared_tmux.wait_for_agent(pane)
    shared_tmux.run_tmux("copy-mode", "-t", pane)
    await type_line(tmux, pane, "while you read")
    await eventually_line(shared_tmux, pid)
    assert shared_tmux.wait_for_agent_log(pid).lines == ["while you read"]
    assert shared_tmux.run_tmux("display-message", "-p", "-t", pane, "#{pane_in_mode}") == "1"


async def test_a_pane_that_takes_no_input_is_not_said_to_have_heard(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    pane = shared_tmux.new_pane()
    shared_tmux.wait_for_agent(pane)
    shared_tmux.run_tmux("select-pane", "-d", "-t", pane)
    with pytest.raises(PaneChanged):
        await type_line(tmux, pane, "hello")
    nowhere = replace((await tmux.panes())[pane], pane_id="%999999")
    with pytest.raises(PaneChanged):
        await tmux.type_line(nowhere, "hello")


async def test_panes_of_another_tmux_server_are_not_touched(tmux_server: TmuxServer) -> None:
    old = tmux_server.pid
    pane = tmux_server.new_pane()
    bound = Tmux(tmux_server.socket, server_pid=old)
    seen = (await bound.panes())[pane]
    tmux_server.stop()
    tmux_server.start()
    again = tmux_server.new_pane(behaviour="raw")
    pid = tmux_server.wait_for_agent(again)
    assert again == pane
    loose = Tmux(tmux_server.socket)
    for attempt in (
        bound.type_line(seen, "hello"),
        bound.type_line((await loose.panes())[pane], "hello"),
        loose.type_line(seen, "hello"),
        bound.capture(pane, 10),
        bound.kill(pane),
    ):
        with pytest.raises(PaneChanged):
            await attempt
    before = tmux_server.list_panes()
    with pytest.raises(TmuxError, match="another tmux server"):
        await bound.split(tmux_server.window, ["claude", "x"], {"PATH": tmux_server.environment["PATH"]})
    assert tmux_server.list_panes() == before
    assert tmux_server.wait_for_agent_log(pid).raw == ""
    assert is_alive(pid)


# -- making, looking into, ending --------------------------------------------------------------------------------


async def test_a_new_pane_runs_its_arguments_as_they_are_and_no_shell_sees_them(
    shared_tmux: TmuxServer, tmux: Tmux, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = shared_tmux.home / "it's #(touch expanded) $(touch expanded) #{pid}"
    directory.mkdir()
    calls = spied(monkeypatch)
    prompt = NASTY + "\n" + "long " * 12_000
    given = {"PATH": shared_tmux.environment["PATH"], "QD_TOKEN": "secret-token", "QD_NAME": NASTY}
    pane = await tmux.split(shared_tmux.window, ["claude", "--name", "a b", prompt], given, str(directory))
    told = shared_tmux.wait_for_agent_log(shared_tmux.pid_of(pane))
    assert told.argv == ["--name", "a b", prompt]
    assert told.environment["QD_NAME"] == NASTY
    assert told.environment["TMUX_PANE"] == pane
    assert told.directory == str(directory)
    assert not list(shared_tmux.home.rglob("expanded"))
    assert all("secret-token" not in argument for arguments in calls for argument in arguments)
    alone = await tmux.split(shared_tmux.window, ["codex"], given)
    assert shared_tmux.wait_for_agent_log(shared_tmux.pid_of(alone)).name == "codex"
    assert shared_tmux.wait_for_agent_log(shared_tmux.pid_of(alone)).directory == str(shared_tmux.home)


async def test_a_program_that_is_not_there_is_said_and_leaves_no_pane(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    before = shared_tmux.list_panes()
    with pytest.raises(TmuxError, match="no program 'nowhere-to-be-found'"):
        await tmux.split(shared_tmux.window, ["nowhere-to-be-found", "x"], {})
    with pytest.raises(TmuxError):
        await tmux.split("@99999", ["claude", "x"], {})
    with pytest.raises(TmuxError, match="NUL"):
        await tmux.split(shared_tmux.window, ["claude", "a\0b"], {})
    with pytest.raises(TmuxError, match="names"):
        await tmux.split(shared_tmux.window, ["claude", "x"], {"not a name": "x"})
    assert shared_tmux.list_panes() == before


@pytest.mark.parametrize("verb", ["source-file", "select-layout", "list-panes"])
async def test_whatever_fails_after_a_pane_was_made_leaves_neither_it_nor_another(
    shared_tmux: TmuxServer, tmux: Tmux, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Its id may be lost with the answer."""
    before, calls = shared_tmux.list_panes(), cut(monkeypatch, verb, ProgramError("no answer"))
    given = {"PATH": shared_tmux.environment["PATH"]}
    with pytest.raises(TmuxError, match="no answer"):
        await tmux.split(shared_tmux.window, ["claude", "x"], given)
    assert shared_tmux.list_panes() == before
    assert calls.count("source-file") == 1, "what may have been done is not done again"


async def test_whoever_is_cut_while_a_pane_is_made_leaves_none(
    shared_tmux: TmuxServer, tmux: Tmux, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = shared_tmux.list_panes()
    cut(monkeypatch, "source-file", asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await tmux.split(shared_tmux.window, ["cat", "-"], {})
    assert shared_tmux.list_panes() == before


async def test_a_window_has_room_for_many_members(tmux_server: TmuxServer) -> None:
    tmux = Tmux(tmux_server.socket)
    made = [await tmux.split(tmux_server.window, ["cat", "-"], {}) for _ in range(20)]
    assert set(made) < set(tmux_server.list_panes())


async def test_the_end_of_what_a_pane_shows_is_captured(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    lines = "import sys; [print('\\033[31mline', n) for n in range(300)]; sys.stdin.read()"
    pane = shared_tmux.new_pane("python3", "-c", lines)
    eventually_sync(lambda: "line 299" in shared_tmux.capture(pane), "all lines were shown")
    assert (await tmux.capture(pane, 80)).split("\n") == [f"line {n}" for n in range(220, 300)]
    assert "\x1b[31m" in await tmux.capture(pane, 5, ansi=True)
    with pytest.raises(PaneChanged):
        await tmux.capture("%999999", 5)


async def test_killing_a_pane_leaves_no_process_of_it_and_no_other_dies(
    shared_tmux: TmuxServer, tmux: Tmux, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminate, "TERM_SECONDS", 0.1)
    other = shared_tmux.new_pane()
    stays = shared_tmux.wait_for_agent(other)
    pane = shared_tmux.new_pane(behaviour="family")
    pid = shared_tmux.wait_for_agent(pane)
    await eventually_children(shared_tmux, pid)
    family = [pid, *shared_tmux.wait_for_agent_log(pid).children]
    await tmux.kill(pane)
    assert not [each for each in family if is_alive(each)]
    assert pane not in shared_tmux.list_panes()
    assert is_alive(stays)
    await tmux.kill(pane)


async def test_killing_ends_who_ignores_being_asked_and_a_pane_that_stays_when_it_is_dead(
    shared_tmux: TmuxServer, tmux: Tmux, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminate, "TERM_SECONDS", 0.1)
    pane = shared_tmux.new_pane(behaviour="stubborn")
    pid = shared_tmux.wait_for_agent(pane)
    await type_line(tmux, pane, "/exit")
    await eventually_line(shared_tmux, pid)
    assert is_alive(pid)
    shared_tmux.run_tmux("set-option", "-p", "-t", pane, "remain-on-exit", "on")
    await tmux.kill(pane)
    assert not is_alive(pid)
    assert pane not in shared_tmux.list_panes()


# -- helpers -----------------------------------------------------------------------------------------------------


def spied(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The arguments of all calls from here on."""
    calls: list[list[str]] = []

    async def spying(
        argv: Sequence[str], environment: Mapping[str, str], said: bytes = b"", seconds: float = 5.0
    ) -> ProgramResult:
        calls.append(list(argv))
        return await run(argv, environment, said, seconds)

    monkeypatch.setattr(commands, "run", spying)
    return calls


def cut(monkeypatch: pytest.MonkeyPatch, verb: str, how: BaseException) -> list[str]:
    """The first call of this verb is done, and its answer lost. The verbs of all calls from here on."""
    verbs: list[str] = []

    async def cutting(
        argv: Sequence[str], environment: Mapping[str, str], said: bytes = b"", seconds: float = 5.0
    ) -> ProgramResult:
        verbs.append(argv[4])
        ran = await run(argv, environment, said, seconds)
        if verbs.count(verb) == 1 and argv[4] == verb:
            raise how
        return ran

    monkeypatch.setattr(commands, "run", cutting)
    return verbs


async def heard(server: TmuxServer, pid: int, end: str) -> None:
    async def has() -> bool:
        return server.wait_for_agent_log(pid).raw.endswith(end)

    await eventually(has, f"the agent had heard {end!r}")


async def eventually_line(server: TmuxServer, pid: int) -> None:
    async def has() -> bool:
        return bool(server.wait_for_agent_log(pid).lines)

    await eventually(has, "the agent had heard a line")


async def eventually_children(server: TmuxServer, pid: int) -> None:
    async def has() -> bool:
        return len(server.wait_for_agent_log(pid).children) == 2

    await eventually(has, "the agent had two children")


async def eventually_front(server: TmuxServer, pane: str, command: str) -> None:
    async def is_so() -> bool:
        return server.run_tmux("display-message", "-p", "-t", pane, "#{pane_current_command}") == command

    await eventually(is_so, f"{command} was in front of {pane}")
