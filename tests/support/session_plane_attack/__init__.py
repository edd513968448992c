"""Random load and faults for the session plane: clients of every kind, faults of the servers, and the histories that
the clients record.

| module             | holds                                                                                   |
|--------------------|-----------------------------------------------------------------------------------------|
| history_writer     | writes histories in the format of `docs/checking.md`                                    |
| server_pool        | the servers that clients use; killed, frozen, restarted                                 |
| recording_client   | one client's connection: sends, gives up, switches servers, and records every call      |
| run_state          | what the clients of a run share, such as the ids they know, valid or not                |
| random_client      | the base of all clients: random actions until the run ends                              |
| session_clients    | clients that spawn, terminate, suspend and resume sessions, and one that changes quotas |
| invocation_clients | clients that register services, invoke, cancel, delegate and revoke                     |
| worker_clients     | clients that claim, complete, release, report late, and disconnect                      |
| fault_injector     | faults of servers, PostgreSQL and Redis                                                 |
| run                | one run, from the first call until nothing is unfinished                                |

Every decision of a client, and of the fault injector, comes from its own generator, seeded with the run's seed and its
name. So a seed gives the same faults in the same order, and the same random choices of each client. The effects of the
choices depend on the responses, which a seed does not determine.
"""
