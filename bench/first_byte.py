#!/usr/bin/env python3
"""How long after the last byte of a request of 10 tokens does its answer's first byte come? With the bundled model, on a
connection made before: first_byte.py BIN_DIR [REQUESTS]"""
import os
import pathlib
import socket
import statistics
import sys
import time

os.environ["LONGSPAN_BIN_DIR"] = str(pathlib.Path(sys.argv[1]).resolve())
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/server/black_box"))
from harness import Server  # noqa: E402


def request(path, body):
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}").encode()


def measure(server, path, body, count):
    """Milliseconds to the first byte, and to the first token."""
    first_bytes, first_tokens = [], []
    for _ in range(count):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            start = time.perf_counter()
            connection.sendall(request(path, body))
            got = connection.recv(65536)
            first_bytes.append((time.perf_counter() - start) * 1e3)
            while b'"text"' not in got:
                got += connection.recv(65536)
            first_tokens.append((time.perf_counter() - start) * 1e3)
            while connection.recv(65536):
                continue
    return first_bytes, first_tokens


def tell(name, values):
    values = sorted(values)
    print(f"{name:48} median {statistics.median(values):6.2f} ms, p90 {values[len(values) * 9 // 10]:6.2f}, "
          f"least {values[0]:6.2f}")


def main():
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    ids = [7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
    with Server() as server:
        prompt = f'{{"prompt": {ids}, "max_tokens": 1, "temperature": 0, "ignore_eos": true'
        measure(server, "/v1/completions", prompt + "}", 10)  # warm
        tell("whole answer of one token: first byte", measure(server, "/v1/completions", prompt + "}", count)[0])
        headers, tokens = measure(server, "/v1/completions", prompt + ', "stream": true}', count)
        tell("stream: first byte (headers and a comment)", headers)
        tell("stream: first token", tokens)


if __name__ == "__main__":
    main()
