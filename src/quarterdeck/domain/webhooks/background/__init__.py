"""The two halves of delivery, which run between requests.

| module          | holds                                                          |
|-----------------|----------------------------------------------------------------|
| event_fanout    | the sink that turns events of the log into deliveries          |
| delivery_worker | sends the deliveries that are due                              |
"""
