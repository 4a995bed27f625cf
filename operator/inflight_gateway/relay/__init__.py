"""The process between Envoy and engines: a response whose engine fails continues at another one.

`http.client` and the base's `http.engine_pool` speak HTTP/1.1 with Envoy and with engines, through httptools and
asyncio protocols. An aiohttp server and client were measured in their place, with the same frame parser but without
checks of the head, the picker, signatures, timers, retries and reports (CPU time of the process, system calls included,
in turns on two cores that other programs used, so ratios say more than numbers):

|                                   | here          | aiohttp        |
|-----------------------------------|---------------|----------------|
| a streamed token, 9,000/s         | 14 to 17 us   | 19 to 26 us    |
| a whole answer, one frame         | 174 to 218 us | 156 to 244 us  |
| an open stream                    | 14 KiB        | 28 KiB         |

Reading and writing a token are two system calls; the relay's own code takes 2.7 us of it. aiohttp's client has no
bound on 1xx responses.
"""
