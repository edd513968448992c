"""Push delivery: sends invocations to services that have a URL instead of a worker.

How it fails. A service that does not answer within the time of its attempt fails the attempt, like a worker whose lease
expires. A server that is killed loses its open requests; their leases expire, and another server sends them again.
"""
