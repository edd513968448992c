"""What those promises say of tasks that are made of sessions and invocations as well. Each is a pure function from
evidence to findings, judged with its namesake one floor up and told under the same name.

| module    | of which promise | says                                                                              |
|-----------|------------------|-----------------------------------------------------------------------------------|
| story     | story            | each step of a task is an arrow of its machine, and told once                       |
| holders   | one-holder       | an attempt begins when none is under way, by the agent that claimed it              |
| endings   | after-the-end    | an agent that is lost or has ended begins nothing                                   |
| agreement | agreement        | rows have the state and the attempt of which the log last told                      |
| rest      | rest             | nothing waits for what has happened, and nobody who is gone holds anything          |

What is promised of tasks alone has a file beside these: `dependencies`, `resumed`.
"""
