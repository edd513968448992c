"""What tasks are made of.

| module   | what                                                            |
|----------|-----------------------------------------------------------------|
| rows     | what is stored, and the settings                                  |
| commands | what is asked of the lane, by callers and by the server           |
| bodies   | what is asked for on the wire, and within which bounds            |
| views    | what is shown                                                     |
| money    | costs and budgets                                                 |
| lines    | the logs of tasks                                                 |
| insight  | explanations, and the tree of dependencies                        |
"""
