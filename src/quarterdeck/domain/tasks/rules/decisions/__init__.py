"""What each command does to a batch, one function per command.

A decision returns the result or a problem. It changes the batch only if it returns a result.

| module      | commands                                                                                        |
|-------------|-------------------------------------------------------------------------------------------------|
| create      | create                                                                                          |
| claim       | claim, and which ready tasks match it                                                           |
| report      | start, progress, complete, fail and release, sent by the holder of an attempt                   |
| change      | cancel, retry, pause, resume, patch and archive, sent by users                                  |
| coordinator | assign, record launch, abort, make available, warn, unblock dependents and fail for cycle       |
| dependents  | (how the end of a task affects the tasks that wait for it)                                      |
"""
