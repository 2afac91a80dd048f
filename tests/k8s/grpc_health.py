"""A gRPC health check as the kubelet makes it, in plaintext, with the minimum of HTTP/2."""

import socket
import struct

SERVING = 1
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, GOAWAY = 0, 1, 4, 6, 7
END_STREAM, ACK, END_HEADERS = 1, 1, 4


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name, value):
    """Returns a header field without compression (RFC 7541, 6.2.2)."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def check(host, port, service, timeout):
    """Returns whether the service is SERVING. Returns False after any error."""
    try:
        with socket.create_connection((host, port), timeout=timeout) as connection:
            connection.settimeout(timeout)
            return ask(connection, f"{host}:{port}".encode(), service.encode()) == SERVING
    except (OSError, ValueError):
        return False


def ask(connection, authority, service):
    headers = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/grpc.health.v1.Health/Check"),
               (b":authority", authority), (b"content-type", b"application/grpc"), (b"te", b"trailers")]
    request = b"\x0a" + bytes([len(service)]) + service if service else b""
    message = b"\0" + struct.pack(">I", len(request)) + request
    connection.sendall(PREFACE + frame(SETTINGS, 0, 0, b"") +
                       frame(HEADERS, END_HEADERS, 1, b"".join(literal(*header) for header in headers)) +
                       frame(DATA, END_STREAM, 1, message))
    stream = connection.makefile("rb")
    answer = b""
    while True:
        head = stream.read(9)
        if len(head) < 9:
            raise ValueError("the server closed the connection")
        kind, flags = head[3], head[4]
        payload = stream.read(int.from_bytes(head[:3], "big"))
        if kind == SETTINGS and not flags & ACK:
            connection.sendall(frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            connection.sendall(frame(PING, ACK, 0, payload))
        elif kind == GOAWAY:
            raise ValueError("the server sent GOAWAY")
        elif kind == DATA:
            answer += payload
        if kind in (DATA, HEADERS) and flags & END_STREAM:
            break
    # Five bytes precede the message, whose only field is the status.
    return answer[6] if len(answer) >= 7 and answer[5] == 8 else 0
