"""What is decided about fleets, without I/O and without a clock.

| module     | what it decides                                                                       |
|------------|---------------------------------------------------------------------------------------|
| crew       | fleets, members, placements                                                             |
| messages   | who may send what to whom, and how a message ends                                       |
| watch      | which process watches over a fleet                                                      |
| monitoring | who is due to be pinged, and whether a monitor is there                                 |
| cards      | who is the administrator                                                                |
| showing    | what is seen of all this; who has left is still shown by name                           |
| refusals   | why not, in sentences                                                                  |
"""
