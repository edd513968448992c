"""Panes of a real tmux server: listing, typing, creating, capturing and killing."""

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
from quarterdeck.tmux.errors import PaneChanged, TmuxError
from quarterdeck.tmux.pane_info import PaneInfo
from quarterdeck.tmux.pane_lock import lock_pane
from quarterdeck.tmux.panes import Tmux
from quarterdeck.tmux.subprocess_run import ProgramError, ProgramResult, run
from tests.support.eventually import eventually, eventually_sync
from tests.support.tmux import TmuxServer, is_alive, needs_tmux, type_line

pytestmark = needs_tmux
HOSTILE_TEXT = (
    'it\'s "quoted" `touch ticked` $(touch dollared) ${HOME} #{pid} #(touch hashed) %7 ; touch semicoloned ;\n'
    "second line\x1b[201~\rtouch escaped\r\x1b]0;t\x07 \\ \\; {a,b} ~ ü 漢字 👩\u200d🔬 end;"
)
EXPECTED_LINE = (
    'it\'s "quoted" `touch ticked` $(touch dollared) ${HOME} #{pid} #(touch hashed) %7 ; touch semicoloned ; '
    "second line touch escaped \\ \\; {a,b} ~ ü 漢字 👩\u200d🔬 end;"
)


# -- listing -----------------------------------------------------------------------------------------------------


async def test_one_command_lists_all_panes(
    shared_tmux: TmuxServer, tmux: Tmux, monkeypatch: pytest.MonkeyPatch
) -> None:
    pane = shared_tmux.new_pane()
    pid = shared_tmux.wait_for_agent(pane)
    calls = record_calls(monkeypatch)
    panes = await tmux.list_panes()
    assert len(calls) == 1
    assert sorted(panes) == sorted(shared_tmux.list_panes())
    assert (panes[pane].pid, panes[pane].server_pid) == (pid, shared_tmux.pid)
    assert (panes[pane].session, panes[pane].is_dead, panes[pane].takes_input) == ("main", False, True)
    assert panes[pane].tty.startswith("/dev/")
    assert abs(panes[pane].server_started_at - time.time()) < 600


async def test_missing_tmux_server_has_no_panes(tmp_path: Path) -> None:
    missing = Tmux(str(tmp_path / "none"))
    assert await missing.list_panes() == {}
    stale_socket = tmp_path / "left"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(stale_socket))
    assert await Tmux(str(stale_socket)).list_panes() == {}


async def test_socket_must_belong_to_this_user(
    tmp_path: Path, shared_tmux: TmuxServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(TmuxError, match="not a socket of this user"):
        await Tmux(str(file)).list_panes()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(TmuxError, match="not a socket of this user"):
        await Tmux(shared_tmux.socket).list_panes()


async def test_program_name_cannot_forge_another_pane(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    forged_name = f"x\n%0:@0:1:{shared_tmux.pid}:0:0:0:/dev/null:main:claude"
    pane = shared_tmux.new_pane("python3", "-c", f"import os; os.execvp('cat', [{forged_name!r}])")
    query = ("display-message", "-p", "-t", pane, "#{pane_current_command}")
    eventually_sync(lambda: shared_tmux.run_tmux(*query).startswith("x"), "the program had the forged name")
    panes = await tmux.list_panes()
    assert sorted(panes) == sorted(shared_tmux.list_panes())
    assert panes["%0"].pid == shared_tmux.pid_of("%0")


async def test_hung_tmux_server_times_out(tmux_server: TmuxServer) -> None:
    os.kill(tmux_server.pid, signal.SIGSTOP)
    try:
        started = time.monotonic()
        with pytest.raises(TmuxError, match="did not finish within"):
            await Tmux(tmux_server.socket, 0.2).list_panes()
        assert time.monotonic() - started < 5
    finally:
        os.kill(tmux_server.pid, signal.SIGCONT)


async def test_invalid_pane_and_window_ids_are_refused(tmux: Tmux) -> None:
    for invalid in ("", "main", "%", "%1;kill-server", "=main:0.0", "@1"):
        with pytest.raises(TmuxError, match="not a tmux pane id"):
            await tmux.paste_line(PaneInfo(invalid, "main", "@0", 1, "claude", False), "hello")
        with pytest.raises(TmuxError, match="not a tmux pane id"):
            await tmux.kill(invalid)
    with pytest.raises(TmuxError, match="not a tmux window id"):
        await tmux.split("%1", ["claude", "x"], {})


# -- typing ------------------------------------------------------------------------------------------------------


async def test_hostile_text_arrives_as_a_bracketed_paste_and_enter_separately(
    shared_tmux: TmuxServer, tmux: Tmux
) -> None:
    pane = shared_tmux.new_pane(behaviour="raw")
    pid = shared_tmux.wait_for_agent(pane)
    await type_line(tmux, pane, HOSTILE_TEXT)
    await eventually_raw_ends(shared_tmux, pid, "\r")
    log = shared_tmux.wait_for_agent_log(pid)
    assert log.raw == f"\x1b[200~{EXPECTED_LINE}\x1b[201~\r"
    assert log.pieces[-1] == "\r"
    assert not list(shared_tmux.home.glob("*ed"))


async def test_hostile_text_is_one_line_without_bracketed_paste(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    pane = shared_tmux.new_pane()
    pid = shared_tmux.wait_for_agent(pane)
    await type_line(tmux, pane, HOSTILE_TEXT)
    await eventually_line(shared_tmux, pid)
    assert shared_tmux.wait_for_agent_log(pid).lines == [EXPECTED_LINE]
    assert shared_tmux.run_tmux("list-buffers") == ""


async def test_concurrently_typed_lines_are_not_merged(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    pane = shared_tmux.new_pane()
    pid = shared_tmux.wait_for_agent(pane)
    lines = [f"line {number}" for number in range(4)]
    # Each line by its own `Tmux`, as in the notifier, the pane service and the monitor.
    await asyncio.gather(*(type_line(Tmux(tmux.socket), pane, line) for line in lines))

    async def has_all_lines() -> bool:
        return len(shared_tmux.wait_for_agent_log(pid).lines) >= len(lines)

    await eventually(has_all_lines, "the agent read all lines")
    assert sorted(shared_tmux.wait_for_agent_log(pid).lines) == lines


async def test_typing_without_enter_also_waits_for_the_pane_lock(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    pane, other = shared_tmux.new_pane(behaviour="raw"), shared_tmux.new_pane()
    pid, other_pid = shared_tmux.wait_for_agent(pane), shared_tmux.wait_for_agent(other)
    seen = (await tmux.list_panes())[pane]
    async with lock_pane(tmux.socket, pane, 5):
        typing = asyncio.create_task(tmux.paste_line(seen, "half a line", press_enter=False))
        await type_line(tmux, other, "a line, meanwhile")
        await eventually_line(shared_tmux, other_pid)
        assert shared_tmux.wait_for_agent_log(pid).raw == ""
    await typing
    await eventually_raw_ends(shared_tmux, pid, "half a line\x1b[201~")


async def test_nothing_is_typed_when_a_shell_has_replaced_the_agent(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    pane = shared_tmux.new_pane(behaviour="shell")
    shared_tmux.wait_for_agent(pane)
    seen = (await tmux.list_panes())[pane]
    await type_line(tmux, pane, "/exit")
    await eventually_foreground(shared_tmux, pane, "sh")
    for text, press_enter in (("touch executed", True), ("touch executed", False), ("", True)):
        with pytest.raises(PaneChanged):
            await tmux.paste_line(seen, text, press_enter=press_enter)
    assert "touch" not in shared_tmux.capture(pane)
    assert shared_tmux.run_tmux("list-buffers") == ""


async def test_enter_is_not_typed_if_the_agent_exits_after_the_text(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    pane = shared_tmux.new_pane(behaviour="shell")
    shared_tmux.wait_for_agent(pane)

    def exit_agent() -> bool:
        shared_tmux.run_tmux("send-keys", "-t", pane, "C-u", "/exit", "Enter")
        query = ("display-message", "-p", "-t", pane, "#{pane_current_command}")
        eventually_sync(lambda: shared_tmux.run_tmux(*query) == "sh", "a shell was in the foreground")
        shared_tmux.run_tmux("send-keys", "-t", pane, "touch executed")
        return True

    seen = (await tmux.list_panes())[pane]
    with pytest.raises(PaneChanged):
        await tmux.paste_line(seen, "hello", is_still_ready=exit_agent)
    # With Enter, the shell would have executed the `touch` at its prompt before this `echo`.
    shared_tmux.run_tmux("send-keys", "-t", pane, "C-u", "echo result-$((40+2))", "Enter")
    eventually_sync(lambda: "result-42" in shared_tmux.capture(pane), "the shell answered")
    assert not (shared_tmux.home / "executed").exists()
    with pytest.raises(PaneChanged):
        await tmux.paste_line((await tmux.list_panes())[shared_tmux.pane], "hello", is_still_ready=lambda: False)


async def test_synchronized_panes_receive_nothing(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    pane = shared_tmux.new_pane()
    pid = shared_tmux.wait_for_agent(pane)
    command = ("env", "FAKE=raw", str(shared_tmux.bin / "codex"), "x")
    other_pane = shared_tmux.run_tmux("split-window", "-d", "-P", "-F", "#{pane_id}", "-t", pane, "--", *command)
    other_pid = shared_tmux.wait_for_agent(other_pane)
    shared_tmux.run_tmux("set-option", "-w", "-t", pane, "synchronize-panes", "on")
    await type_line(tmux, pane, "for one only")
    await eventually_line(shared_tmux, pid)
    assert shared_tmux.wait_for_agent_log(other_pid).raw == ""


async def test_typing_reaches_the_agent_and_keeps_copy_mode(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    pane = shared_tmux.new_pane()
    pid = shared_tmux.wait_for_agent(pane)
    shared_tmux.run_tmux("copy-mode", "-t", pane)
    await type_line(tmux, pane, "while you read")
    await eventually_line(shared_tmux, pid)
    assert shared_tmux.wait_for_agent_log(pid).lines == ["while you read"]
    assert shared_tmux.run_tmux("display-message", "-p", "-t", pane, "#{pane_in_mode}") == "1"


async def test_typing_into_a_disabled_or_missing_pane_raises(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    pane = shared_tmux.new_pane()
    shared_tmux.wait_for_agent(pane)
    shared_tmux.run_tmux("select-pane", "-d", "-t", pane)
    with pytest.raises(PaneChanged):
        await type_line(tmux, pane, "hello")
    missing = replace((await tmux.list_panes())[pane], pane_id="%999999")
    with pytest.raises(PaneChanged):
        await tmux.paste_line(missing, "hello")


async def test_panes_of_another_tmux_server_are_not_touched(tmux_server: TmuxServer) -> None:
    old_pid = tmux_server.pid
    pane = tmux_server.new_pane()
    bound = Tmux(tmux_server.socket, server_pid=old_pid)
    seen = (await bound.list_panes())[pane]
    tmux_server.stop()
    tmux_server.start()
    new_pane = tmux_server.new_pane(behaviour="raw")
    pid = tmux_server.wait_for_agent(new_pane)
    assert new_pane == pane
    unbound = Tmux(tmux_server.socket)
    for attempt in (
        bound.paste_line(seen, "hello"),
        bound.paste_line((await unbound.list_panes())[pane], "hello"),
        unbound.paste_line(seen, "hello"),
        bound.capture(pane, 10),
        bound.kill(pane),
    ):
        with pytest.raises(PaneChanged):
            await attempt
    before = tmux_server.list_panes()
    with pytest.raises(TmuxError, match="no longer has pid"):
        await bound.split(tmux_server.window, ["claude", "x"], {"PATH": tmux_server.environment["PATH"]})
    assert tmux_server.list_panes() == before
    assert tmux_server.wait_for_agent_log(pid).raw == ""
    assert is_alive(pid)


# -- creating, capturing, killing --------------------------------------------------------------------------------


async def test_new_pane_runs_its_argv_without_a_shell(
    shared_tmux: TmuxServer, tmux: Tmux, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = shared_tmux.home / "it's #(touch expanded) $(touch expanded) #{pid}"
    directory.mkdir()
    calls = record_calls(monkeypatch)
    prompt = HOSTILE_TEXT + "\n" + "long " * 12_000
    environment = {"PATH": shared_tmux.environment["PATH"], "QD_TOKEN": "secret-token", "QD_NAME": HOSTILE_TEXT}
    pane = await tmux.split(shared_tmux.window, ["claude", "--name", "a b", prompt], environment, str(directory))
    log = shared_tmux.wait_for_agent_log(shared_tmux.pid_of(pane))
    assert log.argv == ["--name", "a b", prompt]
    assert log.environment["QD_NAME"] == HOSTILE_TEXT
    assert log.environment["TMUX_PANE"] == pane
    assert log.directory == str(directory)
    assert not list(shared_tmux.home.rglob("expanded"))
    assert all("secret-token" not in argument for arguments in calls for argument in arguments)
    second_pane = await tmux.split(shared_tmux.window, ["codex"], environment)
    assert shared_tmux.wait_for_agent_log(shared_tmux.pid_of(second_pane)).name == "codex"
    assert shared_tmux.wait_for_agent_log(shared_tmux.pid_of(second_pane)).directory == str(shared_tmux.home)


async def test_failed_split_raises_and_leaves_no_pane(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    before = shared_tmux.list_panes()
    with pytest.raises(TmuxError, match="'missing-program' is not on PATH"):
        await tmux.split(shared_tmux.window, ["missing-program", "x"], {})
    with pytest.raises(TmuxError):
        await tmux.split("@99999", ["claude", "x"], {})
    with pytest.raises(TmuxError, match="NUL"):
        await tmux.split(shared_tmux.window, ["claude", "a\0b"], {})
    with pytest.raises(TmuxError, match="names"):
        await tmux.split(shared_tmux.window, ["claude", "x"], {"not a name": "x"})
    assert shared_tmux.list_panes() == before


@pytest.mark.parametrize("verb", ["source-file", "select-layout", "list-panes"])
async def test_failure_after_the_pane_was_created_leaves_no_pane(
    shared_tmux: TmuxServer, tmux: Tmux, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    # The pane's id may be lost with the answer.
    before, calls = shared_tmux.list_panes(), fail_first(monkeypatch, verb, ProgramError("no answer"))
    environment = {"PATH": shared_tmux.environment["PATH"]}
    with pytest.raises(TmuxError, match="no answer"):
        await tmux.split(shared_tmux.window, ["claude", "x"], environment)
    assert shared_tmux.list_panes() == before
    assert calls.count("source-file") == 1, "a command that may have run is not repeated"


async def test_cancelled_split_leaves_no_pane(
    shared_tmux: TmuxServer, tmux: Tmux, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = shared_tmux.list_panes()
    fail_first(monkeypatch, "source-file", asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await tmux.split(shared_tmux.window, ["cat", "-"], {})
    assert shared_tmux.list_panes() == before


async def test_window_holds_20_new_panes(tmux_server: TmuxServer) -> None:
    tmux = Tmux(tmux_server.socket)
    panes = [await tmux.split(tmux_server.window, ["cat", "-"], {}) for _ in range(20)]
    assert set(panes) < set(tmux_server.list_panes())


async def test_capture_returns_the_last_lines(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    lines = "import sys; [print('\\033[31mline', n) for n in range(300)]; sys.stdin.read()"
    pane = shared_tmux.new_pane("python3", "-c", lines)
    eventually_sync(lambda: "line 299" in shared_tmux.capture(pane), "all lines were shown")
    assert (await tmux.capture(pane, 80)).split("\n") == [f"line {n}" for n in range(220, 300)]
    assert "\x1b[31m" in await tmux.capture(pane, 5, ansi=True)
    with pytest.raises(PaneChanged):
        await tmux.capture("%999999", 5)


async def test_killing_a_pane_ends_all_its_processes_and_no_others(
    shared_tmux: TmuxServer, tmux: Tmux, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminate, "TERM_SECONDS", 0.1)
    other = shared_tmux.new_pane()
    other_pid = shared_tmux.wait_for_agent(other)
    pane = shared_tmux.new_pane(behaviour="family")
    pid = shared_tmux.wait_for_agent(pane)
    await eventually_children(shared_tmux, pid)
    pids = [pid, *shared_tmux.wait_for_agent_log(pid).children]
    await tmux.kill(pane)
    assert not [process_id for process_id in pids if is_alive(process_id)]
    assert pane not in shared_tmux.list_panes()
    assert is_alive(other_pid)
    await tmux.kill(pane)


async def test_kill_ends_stubborn_processes_and_closes_panes_with_remain_on_exit(
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


def record_calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Record the arguments of all tmux commands from now on."""
    calls: list[list[str]] = []

    async def recording_run(
        argv: Sequence[str], environment: Mapping[str, str], stdin: bytes = b"", seconds: float = 5.0
    ) -> ProgramResult:
        calls.append(list(argv))
        return await run(argv, environment, stdin, seconds)

    monkeypatch.setattr(commands, "run", recording_run)
    return calls


def fail_first(monkeypatch: pytest.MonkeyPatch, verb: str, error: BaseException) -> list[str]:
    """The first tmux command with this verb runs, then raises `error`. Returns the verbs of all later commands."""
    verbs: list[str] = []

    async def failing_run(
        argv: Sequence[str], environment: Mapping[str, str], stdin: bytes = b"", seconds: float = 5.0
    ) -> ProgramResult:
        verbs.append(argv[4])
        result = await run(argv, environment, stdin, seconds)
        if verbs.count(verb) == 1 and argv[4] == verb:
            raise error
        return result

    monkeypatch.setattr(commands, "run", failing_run)
    return verbs


async def eventually_raw_ends(server: TmuxServer, pid: int, end: str) -> None:
    async def has_read() -> bool:
        return server.wait_for_agent_log(pid).raw.endswith(end)

    await eventually(has_read, f"the agent read {end!r}")


async def eventually_line(server: TmuxServer, pid: int) -> None:
    async def has_line() -> bool:
        return bool(server.wait_for_agent_log(pid).lines)

    await eventually(has_line, "the agent read a line")


async def eventually_children(server: TmuxServer, pid: int) -> None:
    async def has_children() -> bool:
        return len(server.wait_for_agent_log(pid).children) == 2

    await eventually(has_children, "the agent had two children")


async def eventually_foreground(server: TmuxServer, pane: str, command: str) -> None:
    async def is_foreground() -> bool:
        return server.run_tmux("display-message", "-p", "-t", pane, "#{pane_current_command}") == command

    await eventually(is_foreground, f"{command} was in the foreground of {pane}")
