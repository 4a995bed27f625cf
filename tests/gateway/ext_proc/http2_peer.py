"""An HTTP/2 client without a socket, which sees and says single frames."""

from __future__ import annotations

import struct

from inflight_gateway.ext_proc.http2 import Connection

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8


class Transport:
    def __init__(self):
        self.written, self.aborted = b"", False

    def write(self, data):
        self.written += data

    def abort(self):
        self.aborted = True


class Peer:
    """The other side of a connection, in frames. Args: answer: makes the call of a stream."""

    def __init__(self, answer, greet=True):
        self.transport, self.connections = Transport(), set()
        self.connection = Connection(answer, self.connections.add, self.connections.discard)
        self.connection.connection_made(self.transport)
        self.greeting = self.frames()
        if greet:
            self.say(PREFACE + frame(SETTINGS))
            assert self.frames() == [(SETTINGS, ACK, 0, b"")]

    def say(self, data):
        self.connection.data_received(data)

    def frames(self):
        found, written, self.transport.written = [], self.transport.written, b""
        while written:
            length, kind, flags, number = int.from_bytes(written[:3], "big"), *struct.unpack(">BBI", written[3:9])
            found.append((kind, flags, number, written[9 : 9 + length]))
            written = written[9 + length :]
        return found


def frame(kind, flags=0, number=0, payload=b""):
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, number) + payload


def opened(number):
    return frame(HEADERS, END_HEADERS, number, b"any header block")
