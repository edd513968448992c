"""The components: one package per noun of the product.

| module       | holds                                                           |
|--------------|-----------------------------------------------------------------|
| `model`      | frozen structs; a command and a stored row are different types  |
| `rules`      | the pure part: state machines, admission, errors                |
| `queries`    | named SQL statements                                            |
| `operations` | functions that run in a transaction: one per verb, over a batch |
| `sweeps`     | bounded background passes                                       |
| `routes`     | rows of the route table, and their handlers                     |

A component has those of these modules that it needs. Components are layered. A component calls the `operations` of a
lower one directly, in the same transaction. It notifies a higher one by events, which go to the listeners listed in
`app.transaction_listeners`. The layers of the components, and of the modules in a component, are import contracts that
`make test` checks.
"""
