"""One model over the devices of several hosts, a process each.

Host 0 holds the engine. The others hold no queue: they are sent every call of the device (`device.SharedDevice`) over
an authenticated connection, and make the same one on their part of the arrays (`follower.follow`).

    frames    messages <-> bytes                    link      one authenticated connection
    seat      a process's place                     peer      a link that is watched: heartbeats both ways
    facts     what must be the same                 meeting   who takes part, and with what
    group     host 0's side and a follower's side   calls     the device's calls as messages
"""
