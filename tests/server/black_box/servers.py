"""The servers that cases share: each is started when first asked for and lives until the end."""
import functools
import json
import os

from harness import Server, says

FULL = bool(os.environ.get("LONGSPAN_FULL"))
_started = []


SOAK_SECONDS = 60 * float(os.environ.get("LONGSPAN_SOAK_MINUTES", 10 if FULL else 5 / 60))


def often(normally, in_full):
    """How often a case repeats."""
    return in_full if FULL else normally


def _start(*flags, **more):
    server = Server(*flags, **more)
    _started.append(server)
    return server


@functools.cache
def plain():
    """No prefix caching: every prompt is computed."""
    return _start("--max-num-seqs", 16)


@functools.cache
def caching():
    return _start("--max-num-seqs", 16, "--enable-prefix-caching")


@functools.cache
def small_cache():
    """Its cache is full, and all of its memory touched, after some hundred prompts."""
    return _start("--max-num-seqs", 16, "--enable-prefix-caching", "--cache-memory", "256MiB")


@functools.cache
def mock(**script):
    """The real server with a scripted engine; tests/server/mock_engine.h."""
    return _start("--max-num-seqs", 64, binary="longspan_mock", env={"MOCK_ENGINE": json.dumps(script)})


def mock_says(text, end="", **script):
    """A mock whose every answer is `text`, and then an end of its own."""
    ids = plain().post("/tokenize", {"prompt": text + end}).json["tokens"]
    return _mock_of(json.dumps({"tokens": ids, "stop_after": len(ids), "tokens_per_second": 100000, **script}))


@functools.cache
def _mock_of(script):
    return _start("--max-num-seqs", 64, binary="longspan_mock", env={"MOCK_ENGINE": script})


@functools.cache
def has_constrained_decoding():
    return plain().post("/v1/chat/completions",
                        says("Hi", response_format={"type": "json_object"}, max_tokens=2)).status == 200


def stop_all():
    for server in _started:
        server.stop()
