"""The rooms: one package per group of nouns, bottom first.

A room holds what it needs of: `model` (frozen structs; what is asked for and what is stored are different types),
`rules` (the pure part: arrows, admission, the room's refusal codes), `queries` (named statements), `operations` (one
function per verb, over a batch), `sweeps` (bounded passes) and `routes` (its rows of the route table).

A room calls *down*, through another room's `operations`, in the same transaction. It speaks *up* by events, to the
listeners named in one table in `app.py`. The order of the rooms, and the order of the files in a room, are import
contracts that `make test` checks.
"""
