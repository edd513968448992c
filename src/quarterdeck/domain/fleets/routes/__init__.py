"""The routes for fleets, members, messages and the monitor.

| module         | holds                                                                             |
|----------------|-----------------------------------------------------------------------------------|
| fleet_routes   | create, list, show and delete fleets                                              |
| member_routes  | register, list, show and deregister members; read and write their panes           |
| message_routes | send, broadcast, poll, acknowledge and cancel messages; the timeline              |
| monitor_routes | claim, release and configure the monitor                                          |
| request_fields | path parameters, idempotency keys, size checks and cursors that the others share  |
"""
