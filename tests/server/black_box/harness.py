"""A server process and a client for tests that see only what a client sees. Python's standard library alone."""
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODEL = ROOT / "models/longspan-tiny"
BIN = pathlib.Path(os.environ.get("LONGSPAN_BIN_DIR", ROOT / "build/release/bin"))
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def program(name="longspan"):
    path = BIN / name
    if not path.exists():
        raise FileNotFoundError(f"{path}: build it, or set LONGSPAN_BIN_DIR")
    return str(path)


class Reply:
    """A whole response. `chunks`: (seconds since the request was sent, bytes) as they came, where asked for."""

    def __init__(self, status, headers, body, chunks=()):
        self.status, self.headers, self.body, self.chunks = status, headers, body, chunks

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]

    @property
    def comments(self):
        return [line for line in self.body.decode("utf-8").split("\n") if line.startswith(":")]

    @property
    def events(self):
        """The data of server-sent events: JSON values, and "[DONE]" as a string."""
        text = self.body.decode("utf-8")  # a broken character raises here
        assert text == "" or text.endswith("\n\n"), "an event without its blank line"
        out = []
        for block in text.split("\n\n"):
            data = [line[6:] for line in block.split("\n") if line.startswith("data: ")]
            if data:
                out.append(data[0] if data[0] == "[DONE]" else json.loads("\n".join(data)))
        return out


class Server:
    """`longspan serve` on a port of this machine, 0: any free one. Use as a context manager, or stop()."""

    def __init__(self, *flags, binary="longspan", env=None, port=0):
        self.log_path = pathlib.Path(tempfile.mkstemp(prefix="longspan-", suffix=".log")[1])
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [program(binary), "serve", "--model", str(MODEL), "--port", str(port), *map(str, flags)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **(env or {})})
        self.port = self._wait_for_port()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def _wait_for_port(self):
        for _ in range(600):
            found = re.search(r"listening on http://[^ ]*:(\d+)", self.log)
            if found:
                return int(found.group(1))
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise RuntimeError(f"the server does not come up:\n{self.log}")

    @property
    def log(self):
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def stop(self):
        """Kills it, if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.log_path.unlink(missing_ok=True)

    def memory_kib(self):
        """Private memory in use."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"RssAnon:\s+(\d+) kB", status).group(1))

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def connection(self, timeout=120):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None, timeout=120):
        """`body`: bytes as they are, anything else as JSON."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode("utf-8")
            headers = {"Content-Type": "application/json", **(headers or {})}
        connection = self.connection(timeout)
        try:
            start = time.monotonic()
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            chunks = []
            while True:
                piece = response.read1(65536)
                if not piece:
                    break
                chunks.append((time.monotonic() - start, piece))
            return Reply(response.status, {k.lower(): v for k, v in response.getheaders()},
                         b"".join(piece for _, piece in chunks), chunks)
        finally:
            connection.close()

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def post(self, path, body, **more):
        return self.request("POST", path, body, **more)

    def status(self):
        return self.get("/v1/longspan/status").json

    def wait_until(self, condition, seconds=20):
        """condition(status) becomes true; the status then."""
        end = time.monotonic() + seconds
        while True:
            status = self.status()
            if condition(status):
                return status
            if time.monotonic() > end:
                raise AssertionError(f"still not so after {seconds} s: {json.dumps(status['queue'])}, "
                                     f"{json.dumps(status['pages'])}, {len(status['requests'])} requests")
            time.sleep(0.03)

    def wait_until_idle(self, seconds=20):
        """Nothing runs, nothing waits, and no page is held by a request."""
        return self.wait_until(lambda s: not s["requests"] and s["queue"]["running"] + s["queue"]["waiting"] == 0 and
                               s["pages"]["free"] + s["pages"]["cached"] == s["pages"]["total"], seconds)


def says(text, **more):
    """A chat request of one user message, greedy."""
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 24, **more}


CHUNK_KEYS = {"id", "object", "created", "model", "choices", "usage"}
DELTA_KEYS = {"role", "content", "reasoning_content", "tool_calls"}
FINISH_REASONS = {"stop", "length", "tool_calls"}


class Choice:
    """A choice put together from its chunks."""

    def __init__(self):
        self.content, self.reasoning, self.calls, self.logprobs, self.finish_reason = "", "", [], [], None
        self.has_role = False


def read_chat_stream(reply, usage=False, progress=False, broken_text=False):
    """Puts a stream together; raises AssertionError wherever its grammar differs from what clients rely on (T11).
    `broken_text`: the model may have written bytes that are no text. -> ({index: Choice}, usage or None)"""
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"].startswith("text/event-stream"), reply.headers
    events = reply.events
    assert events[-1] == "[DONE]" and events.count("[DONE]") == 1, "[DONE] comes last, and once"
    assert not reply.body[reply.body.index(b"[DONE]") + 6:].strip(), "nothing comes after [DONE]"
    choices, total, envelopes = {}, None, set()
    for chunk in events[:-1]:
        envelopes.add((chunk["id"], chunk["created"], chunk["model"]))
        assert chunk["object"] == "chat.completion.chunk", chunk
        if "prompt_progress" in chunk:
            assert progress and not choices, "progress comes when asked for, in front of the first token"
            continue
        assert set(chunk) <= CHUNK_KEYS, chunk
        assert total is None, "the usage is the last chunk"
        if not chunk["choices"]:
            total = chunk["usage"]
            continue
        assert ("usage" in chunk) == usage, chunk
        (choice,) = chunk["choices"]
        whole = choices.setdefault(choice["index"], Choice())
        assert whole.finish_reason is None, "nothing comes after the end of a choice"
        assert broken_text or "�" not in json.dumps(choice["delta"], ensure_ascii=False), choice
        add_delta(whole, choice["delta"])
        whole.logprobs += (choice.get("logprobs") or {}).get("content", [])
        if choice["finish_reason"] is not None:
            assert choice["delta"] == {} and choice["finish_reason"] in FINISH_REASONS, choice
            whole.finish_reason = choice["finish_reason"]
    assert len(envelopes) == 1, f"id, created and model are the same in all chunks: {envelopes}"
    assert all(choice.finish_reason for choice in choices.values()), "each choice ends"
    assert (total is not None) == usage, "usage comes when asked for"
    return choices, total


def add_delta(whole, delta):
    assert set(delta) <= DELTA_KEYS, delta
    assert all(value is not None for value in delta.values()), f"no nulls in a delta: {delta}"
    if "role" in delta:
        assert delta["role"] == "assistant" and "content" in delta and not whole.has_role, delta
        whole.has_role = True
    assert whole.has_role or not delta, "the role comes first"
    whole.content += delta.get("content", "")
    whole.reasoning += delta.get("reasoning_content", "")
    for call in delta.get("tool_calls", []):
        if call["index"] == len(whole.calls):
            assert call["type"] == "function" and call["id"] and call["function"]["name"], call
            whole.calls.append({"name": call["function"]["name"], "arguments": ""})
        whole.calls[call["index"]]["arguments"] += call["function"].get("arguments", "")


def both_ways(server, body, broken_text=False):
    """Asks whole and streamed; they must say the same. -> the whole answer"""
    whole = server.post(CHAT, body)
    assert whole.status == 200, whole.body
    streamed = server.post(CHAT, {**body, "stream": True, "stream_options": {"include_usage": True}})
    choices, usage = read_chat_stream(streamed, usage=True, broken_text=broken_text)
    answer = whole.json
    assert usage == answer["usage"], (usage, answer["usage"])
    assert len(choices) == len(answer["choices"])
    for choice in answer["choices"]:
        same, message = choices[choice["index"]], choice["message"]
        assert same.content == (message["content"] or ""), (same.content, message)
        assert same.reasoning == message.get("reasoning_content", ""), (same.reasoning, message)
        assert same.calls == [call["function"] for call in message.get("tool_calls", [])], (same.calls, message)
        assert same.finish_reason == choice["finish_reason"], (same.finish_reason, choice)
        assert same.logprobs == (choice["logprobs"] or {}).get("content", []), choice
    return answer


def content(answer, index=0):
    return answer["choices"][index]["message"]["content"]
