"""The components: one package per group of nouns of the product, such as sessions or tasks.

| module       | holds                                                           |
|--------------|-----------------------------------------------------------------|
| `model`      | commands, stored rows and views, as frozen structs              |
| `rules`      | pure functions: state machines, admission, errors               |
| `queries`    | named SQL statements                                            |
| `operations` | functions that run in a transaction, most of them over a batch  |
| `sweeps`     | bounded passes that the runner repeats                          |
| `background` | loops that run as long as the process                           |
| `routes`     | rows of the route table, and their handlers                     |
| `component`  | how the component is built: its lanes, routes, sweeps, loops    |

A component has only the modules that it needs. Components are layered. A component calls the `operations` of a lower
one directly, in the same transaction. It notifies a higher one by events, which are passed to the listeners that
`app.transaction_listeners` returns. The layers of the components, and of the modules in a component, are import
contracts that `make test` checks.
"""
