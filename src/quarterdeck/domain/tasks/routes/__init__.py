"""The routes for tasks.

| module           | holds                                                                  |
|------------------|------------------------------------------------------------------------|
| task_routes      | create, list, claim, report on and end tasks                           |
| detail_routes    | routes that show more about one task, and those for logs and costs     |
| heartbeat_routes | heartbeats of agents, which also report on tasks                       |
| request_commands | the command for each request body                                      |
| bulk_responses   | responses to requests with several tasks                               |
"""
