"""The processes between Envoy and the engines: they check heads, read bodies, ask the picker for an engine, and
continue answers at another engine when theirs fails.

`client` and `engine_pool` speak HTTP/1.1 through httptools and asyncio protocols. An aiohttp server and client were
measured in their place, with the same frame parser but without timers, retries and reports (CPU time of the process,
system calls included, on two cores that other programs used, so ratios say more than numbers):

|                                   | here          | aiohttp        |
|-----------------------------------|---------------|----------------|
| a streamed token, 9,000/s         | 17 to 26 us   | 29 to 39 us    |
| a whole answer, one frame         | 73 to 83 us   | 177 to 269 us  |
| an open stream                    | 11 KiB        | 28 KiB         |

System calls are about 40% of the time of a token here.
"""
