"""The process between Envoy and engines: a response whose engine fails continues at another one.

`http.connection` speaks HTTP/2 with Envoy, whose heads jh2 reads and writes (its decoder of HPACK in Rust: 3 us a head;
that of `hpack` in Python: 170), and the base's `http.engine_pool` HTTP/1.1 with engines, through httptools. Both are
asyncio protocols. Between Envoy and the relay all requests share a connection for each thread of Envoy, so that frames
of many streams take one system call in each (figures in docs/performance.md).

An aiohttp server and client were measured in place of HTTP/1.1 on both sides, with the same frame parser but without
checks of the head, the picker, signatures, timers, retries and reports (CPU time of the process, system calls included,
in turns on two cores that other programs used, so ratios say more than numbers):

|                                   | httptools     | aiohttp        |
|-----------------------------------|---------------|----------------|
| a streamed token, 9,000/s         | 14 to 17 us   | 19 to 26 us    |
| a whole answer, one frame         | 174 to 218 us | 156 to 244 us  |
| an open stream                    | 14 KiB        | 28 KiB         |

aiohttp's client has no bound on 1xx responses.
"""
