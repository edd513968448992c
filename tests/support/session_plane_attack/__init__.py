"""The session plane under load and under attack: clients of every kind, what is done to the servers meanwhile, and the
histories that the clients keep of it.

| module    | what                                                                                        |
|-----------|---------------------------------------------------------------------------------------------|
| recorder  | histories, in the form of `docs/checking.md`                                                  |
| fleet     | the servers that clients may ask; killed, frozen, started again                               |
| caller    | one client's connection: asks, gives up, goes elsewhere, and writes down what became of it     |
| known     | what clients have heard of and may try next, rightly or wrongly                               |
| tenders   | clients that spawn, end, suspend and resume sessions, and one that moves the limits            |
| callers   | clients that register services, invoke, cancel, delegate and revoke                           |
| workers   | clients that claim, complete, give back, keep too long, and vanish                             |
| disturber | what happens to the servers                                                                   |
| course    | one run, from the first call to rest                                                          |

Every decision of every client, and of the disturber, is drawn from a generator of its own that is seeded with the run's
seed and its name. So a seed gives the same disturbances in the same order, and clients of the same inclinations. Where
those lead depends on what each of them is answered, which is left to the machine.
"""
