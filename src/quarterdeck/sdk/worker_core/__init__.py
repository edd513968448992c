"""What both workers share: claims, the attempts in flight, reports, leases, lifecycle and threads.

| module       | what it does                                                                    |
|--------------|---------------------------------------------------------------------------------|
| claims       | claims attempts: when, how many, and under which claim id                       |
| in_flight    | the held attempts: starts and drops them; prefetch by the mean duration         |
| lease_keeper | extends the leases of held attempts, and handles canceled and lost ones         |
| reports      | sends reports in batches until the server has accepted or refused each of them  |
| lifecycle    | registration, signals, stop and shutdown                                        |
| threads      | runs plain functions in threads, without blocking the event loop                |
"""
