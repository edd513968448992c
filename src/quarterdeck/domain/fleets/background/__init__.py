"""The pane notifier: types notices about new messages into panes, after the commit that stored them.

How it fails. A notice is tried once. If it cannot be typed, its receipt gives the reason, and the recipient gets the
message at its next poll. A server that is killed loses the notices that it had not typed, but no message.
"""
