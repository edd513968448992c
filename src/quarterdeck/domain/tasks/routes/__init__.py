"""The routes for tasks.

| module           | holds                                                                  |
|------------------|------------------------------------------------------------------------|
| task_routes      | create, list, claim, report on and end tasks                           |
| explain_routes   | explain the state of a task, show its dependency tree                  |
| heartbeat_routes | heartbeats of agents, which also report on tasks                       |
| request_commands | the command for each request body                                      |
| bulk_responses   | responses to requests with several tasks                               |
"""
