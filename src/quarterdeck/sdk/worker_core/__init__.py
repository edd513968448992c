"""Code that both workers share: a bounded pool of threads for plain functions, and signal handling for `main()`.

| module  | what it does                                                                        |
|---------|-------------------------------------------------------------------------------------|
| threads | runs plain functions in threads, without blocking the event loop              |
| signals | runs a worker until SIGINT or SIGTERM; a second signal stops it without waiting     |
"""
