"""Launching: a session for each task that was assigned to an agent with a launcher.

    assigned ─► what the task says ─► start ─► launched (RUNNING) ─► the work ─► its own word, or its exit
                                        │          │
                        failed: the attempt has    └ refused: the attempt is over, and what was started is ended
                        failed, and is reported

| module    | what                                                                                        |
|-----------|-----------------------------------------------------------------------------------------------|
| pad       | which launchers there are, how many more each can start, and what becomes of each launch         |
| gateway   | sessions that somebody else runs, asked for over HTTP                                            |
| processes | sessions that are processes of this server's machine: their beginning, pulse, last words and end |
| guarding  | that they do not outlive a server that is killed; `guard` is the program that sees to it         |

What can be started stands in the server's own configuration. A task decides what is *told* to a launcher, on the
standard input or in the body; it decides nothing of what runs, with which arguments, where, or what it sees of the
environment.

A launch begins after the commit that assigned the task, and has its time. A server that was frozen between the two does
not begin one that is late: somebody else has taken the task back by then, or is about to. A process gets to know its
task only when the launch has been written down under the attempt's token, so of two who would work on the same task one
has learned nothing.

How it fails. What cannot be started has failed, with a sentence in `lastError` that holds no secret. A process that
ends without having completed its task has failed, with its last words as stack trace. One whose attempt is over
(canceled, paused, timed out, its agent gone) is asked to end, and ended after its grace, with everything that it has
started in its group. A server that stops ends its processes and gives their attempts back. For one that is killed its
guard ends them; their attempts are taken back when their agent, which nobody beats for any more, is stale. Should the
guard be killed too, they run on by themselves until then, and whatever they say afterwards is refused.
"""

from quarterdeck.domain.coordination.launchers.launcher import TaskLauncher
from quarterdeck.domain.coordination.launchers.model import AgentTokenSpec, LauncherDeps, LaunchRequest

__all__ = ["AgentTokenSpec", "LaunchRequest", "LauncherDeps", "TaskLauncher"]
