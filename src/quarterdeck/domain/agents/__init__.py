"""Agents: who works, and who may speak.

An agent is a registered worker: what it can do, how many tasks it holds at once, how often it is to be heard of. This
room decides which agents there are and how each stands.

| status     | when                                                                                        |
|------------|---------------------------------------------------------------------------------------------|
| IDLE       | it was heard of, and holds nothing                                                            |
| WORKING    | it was heard of, and holds tasks: shown, not stored                                           |
| DEGRADED   | it says of itself that it fares badly: it may claim, and nothing is started for it             |
| ERROR      | it was not heard of for `staleThresholdSeconds` (`stale`): it is given nothing, and what it    |
|            | held is taken from it in the same transaction (`domain.tasks` hears of `agent.stale`)          |
| TERMINATED | somebody ended it; at once, or `graceful`, when it had given back the last it held             |

**Being heard of** is a heartbeat, a registration, a claim for as long as it waits, or a word about a task under the
token of its attempt. What others do with its tasks (cancel, pause, assign, abort) says nothing of an agent; only that
the silence of one that held nothing counts from the first it is given. Heartbeats are many, so each costs one narrow
row (`agent_pulses`) that no index knows of, without the zone's lock and without an event; a history is kept for an
hour, a row when something changes or every ten seconds. Whatever follows from a heartbeat for how an agent stands is
decided under the zone's lock by a second step, `Look`, before the heartbeat is answered; should the process end in
between, the next heartbeat finds the same and has it decided.

**Being silent** is looked for when it may be so: `agents.look_at` is when, and whoever looks puts it forward to the
moment that the last heartbeat gives. Nothing counts time in memory. A look locks what is heard of the agent, so that a
heartbeat which comes at the same moment is either seen by it, or finds an agent that is lost and has it back. A late
heartbeat brings an agent back (`agent.revived`), and so does its claim; what was taken from it stays taken.

**A heartbeat has two parts**: the agent's own, and its word about its current task, which is the task's room's to judge
(`words`). Whatever can be refused is refused before anything is changed; the agent's part is decided next; the word is
kept last. That its attempt is over does not cost the agent its pulse, since it is by the answer that it hears of it.

**An agent that the server registered** for another room (a member of a fleet) is not missed before it has spoken:
nobody knows whether it ever will. `look_at` is null until its first heartbeat, claim or registration of its own.

**An agent with a launcher** runs only while it has a task. So its silence counts only then; and since nobody but a
launcher could have it heard of again, one that was lost is given another chance after the same time again.

**What an agent can do decides what secrets it is given.** Its own token changes its own agent alone, takes capabilities
away and adds none, and makes no agent. What starts its sessions is changed by an OWNER or ADMIN, from what the server's
own configuration names. One that was terminated and is registered again has nothing of what it had.

There is no bound on how many agents a zone has, as there is none on its tasks: whoever may register may also make
tasks without end, a row is small, and nothing but a list, and retention now and then, ever walks them. Those that were
terminated are removed when tasks that ended with them would be, and no task names them any more (`sweeps`).

How it fails. An agent that is not there is 404 `agent_not_found`, one of another workspace likewise; a heartbeat of one
that was terminated is 409 `agent_terminated`, and its own token is refused (401), also when another is registered under
its name: a token is good for one registration (`rules.refusals.bearer_problem`). Terminating what has ended succeeds
and moves nothing. With the database away a heartbeat is 503, and counts for nothing: when it is back every agent has
its whole threshold only if it was heard of in time, so a long outage loses agents, which their next heartbeats bring
back.

**Who may speak** (`operations.speaking`). Whoever asks for something in a workspace speaks for a session, for an agent,
as a member, or as nobody this workspace knows. Whether their word counts is decided in the transaction of what they ask
for, under the same lock: a session that has ended, an agent that was terminated and a member that was removed are heard
no more from that very commit on. This room stands above sessions for that reason (`docs/decisions/0020`).
"""
