"""Launchers: start a program for each task that is assigned to an agent with a launcher.

    assigned ─► read the task ─► start ─► record the launch (RUNNING) ─► work ─► the agent's report, or the exit
                                   │             │
                                   │             └ refused: the attempt has ended; kill what was started
                                   └ failed: report a failed attempt

| module               | what it does                                                                           |
|----------------------|----------------------------------------------------------------------------------------|
| launcher             | manages the configured launchers and their free capacity, and runs each launch         |
| http_launcher        | requests a session for an attempt from a gateway over HTTP                             |
| process_launcher     | runs attempts as processes on this machine: start, heartbeat, output, end              |
| orphan_reaper        | the program that kills these processes if the server is killed                         |
| orphan_reaper_client | starts the orphan reaper and reports the running process groups to it                  |
| model                | types                                                                                  |

The server's configuration defines what can be started. A task only supplies the data on standard input or in the HTTP
body. It cannot change the command, the arguments, the directory or the environment.

A launch starts after the commit that assigned the task, and has a deadline. A server that stalls in between does not
start the launch late, because the coordinator has aborted the attempt or is about to. A process gets its task only
after the launch was recorded with the attempt's token. So if two processes are started for one task, only one gets it.

How it fails. If nothing could be started, the attempt fails, and its `lastError` contains no secrets. If a process
exits without completing its task, the attempt fails, with the end of its output as the stack trace. If the attempt
ends first (canceled, paused, timed out, agent lost), the process group gets SIGTERM and, after a grace period, SIGKILL.
A server that stops kills its processes and releases their attempts. If a server is killed, the orphan reaper kills its
processes; their attempts are aborted when their agent becomes stale, because the server no longer sends heartbeats for
it. If the reaper is killed too, the processes run until they exit, and their later reports are refused.
"""
