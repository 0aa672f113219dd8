"""9h: concurrency, cancelling, stalls, stopping."""
import concurrent.futures
import contextlib
import json
import random
import re
import signal
import socket
import tempfile
import threading
import time
import unittest
import uuid

import servers
from harness import CHAT, ROOT, Server, content, read_chat_stream, says

DOCUMENT = (ROOT / "examples/long_document.txt").read_text(encoding="utf-8")


def raw_post(server, body, path=CHAT):
    """An open connection with the request sent; closing it is a client that leaves."""
    data = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                       % (path.encode(), len(data), data))
    return connection


def endless(**more):
    return says("Go on.", ignore_eos=True, **{"max_tokens": 20000, **more})


class Concurrency(unittest.TestCase):
    def test_T71_parallel_answers_are_never_swapped(self):
        def ask(i):
            body = says(f"Repeat exactly: {words[i]}", max_tokens=60)
            if i % 2:
                return read_chat_stream(servers.plain().post(CHAT, {**body, "stream": True}))[0][0].content
            return content(servers.plain().post(CHAT, body).json)

        random.seed(71)
        words = [str(uuid.UUID(int=random.getrandbits(128)))[:8] for _ in range(64)]
        alone = [ask(i) for i in range(0, 64, 8)]
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            answers = list(pool.map(ask, range(64)))
        self.assertEqual(answers[::8], alone, "the same alone and in company (T54)")
        for i, answer in enumerate(answers):  # a small model copies not everything, but never another's
            others = [word for j, word in enumerate(words) if j != i and word in answer]
            self.assertEqual(others, [], f"asked for {words[i]}")

    def test_T54_one_and_32_in_parallel_give_the_same(self):
        body = says("What can you do?", max_tokens=40, ignore_eos=True, logprobs=True)
        alone = servers.plain().post(CHAT, body).json["choices"]
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            for reply in pool.map(lambda _: servers.plain().post(CHAT, body), range(32)):
                self.assertEqual(reply.json["choices"], alone)

    def test_T77_one_long_prompt_does_not_freeze_the_other_streams(self):
        def stream(i):
            reply = servers.plain().post(CHAT, endless(max_tokens=150, stream=True, seed=i))
            times = [time for time, piece in reply.chunks if b'"content"' in piece]
            self.assertEqual(read_chat_stream(reply)[0][0].finish_reason, "length")
            return max(b - a for a, b in zip(times, times[1:]))

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            streams = [pool.submit(stream, i) for i in range(7)]
            time.sleep(0.2)
            start = time.monotonic()
            self.assertEqual(servers.plain().post(CHAT, says(DOCUMENT[:40000] + "\nHello", max_tokens=2)).status, 200)
            took = time.monotonic() - start
            gaps = [one.result() for one in streams]
        print(f"T77: longest gap {max(gaps):.2f} s, prompt {took:.2f} s ", end="", flush=True)
        self.assertLess(max(gaps), max(2, took / 2), "seconds between two tokens while a long prompt is read")

    def test_T78_many_at_once_with_the_prefix_cache(self):
        def ask(i):
            return servers.caching().post(CHAT, says(DOCUMENT[: 2000 + 400 * (i % 5)] + f"\nWhat is {i % 3} + 4?",
                                                     max_tokens=4))

        with concurrent.futures.ThreadPoolExecutor(100) as pool:
            replies = list(pool.map(ask, range(100)))
        self.assertEqual({reply.status for reply in replies}, {200})
        for i in range(15):
            self.assertEqual(len({content(reply.json) for reply in replies[i::15]}), 1)
        servers.caching().wait_until_idle()


class Leaving(unittest.TestCase):
    def test_T73_a_client_that_leaves_while_its_prompt_is_read(self):
        server = servers.plain()
        for stream in (True, False):
            connection = raw_post(server, says(DOCUMENT + "\nHello", stream=stream, max_tokens=20))
            server.wait_until(lambda s: any(r["phase"] == "prefill" for r in s["requests"]))
            connection.close()
            server.wait_until_idle(seconds=60)  # one chunk, on a machine that others use

    def test_T73_a_client_that_leaves_while_it_waits_or_is_answered(self):
        server = servers.plain()
        connections = [raw_post(server, endless(stream=bool(i % 2))) for i in range(24)]  # 16 rows
        server.wait_until(lambda s: s["queue"]["running"] == 16 and len(s["requests"]) == 24)
        steps = server.status()["totals"]["prefill_tokens"]
        for connection in connections:
            connection.close()
        status = server.wait_until_idle()
        self.assertLess(status["totals"]["prefill_tokens"] - steps, 8 * 40, "most of those in the queue never started")

    def test_T74_random_aborts_leave_nothing_behind(self):
        def abort(i):
            random.seed(i)
            body = endless(stream=i % 3 != 0, n=1 + i % 2)
            if i % 4 == 0:
                body = says(DOCUMENT[: random.randrange(2000, 20000)], stream=i % 3 != 0)
            connection = raw_post(servers.caching(), body)
            time.sleep(random.random() * 0.05)
            connection.close()

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            list(pool.map(abort, range(servers.often(150, 1000))))
        servers.caching().wait_until_idle(seconds=30)
        self.assertEqual(servers.caching().post("/reset_prefix_cache", {}).status, 200)
        status = servers.caching().wait_until(lambda s: s["pages"]["free"] == s["pages"]["total"])
        self.assertEqual(status["queue"], {"running": 0, "waiting": 0, "swapped": 0})
        self.assertTrue(content(servers.caching().post(CHAT, says("Hello!")).json))

    def test_T75_others_survive_a_client_s_time_out_in_a_long_prompt(self):
        server = servers.plain()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            others = [pool.submit(lambda: server.post(CHAT, endless(max_tokens=120, stream=True))) for _ in range(4)]
            with self.assertRaises(TimeoutError):
                server.request("POST", CHAT, says(DOCUMENT * 2 + "\nHello"), timeout=0.5)
            for other in others:
                self.assertEqual(read_chat_stream(other.result())[0][0].finish_reason, "length")
        server.wait_until_idle()

    def test_T74_a_request_is_cancelled_by_its_id(self):
        server = servers.plain()
        headers = {"X-Request-Id": "to-cancel"}
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            whole = pool.submit(lambda: server.request("POST", CHAT, endless(), headers))
            server.wait_until(lambda s: any(r["completion_tokens"] > 3 for r in s["requests"]))
            self.assertEqual(server.post("/v1/requests/chatcmpl-to-cancel/cancel", {}).status, 200)
            self.assertEqual(whole.result().status, 409)
        server.wait_until_idle()


def slope_of(points):
    """Of the straight line through (x, y), least squares; 0 where all x are the same."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


class Operation(unittest.TestCase):
    def test_T76_mixed_load_makes_progress_all_the_time(self):
        server = servers.small_cache()
        start = time.monotonic()
        end = start + servers.SOAK_SECONDS
        errors, asked = [], []

        def work(seed):
            chance = random.Random(seed)
            while time.monotonic() < end:
                kind = chance.choice(["short", "long", "leave", "n", "bad", "stream"])
                body = says(f"What is {chance.randrange(99)} + {chance.randrange(99)}?", max_tokens=12)
                if kind == "leave":
                    connection = raw_post(server, endless(stream=True))
                    time.sleep(chance.random() * 0.3)
                    connection.close()
                    continue
                if kind == "long":
                    body = says(DOCUMENT[: chance.randrange(8000)] + "\nHello", max_tokens=4)
                body.update({"n": {"n": 3}, "bad": {"temperature": -1}, "stream": {"stream": True}}.get(kind, {}))
                asked.append(kind)
                if server.post(CHAT, body, timeout=900).status != (400 if kind == "bad" else 200):
                    errors.append(body)

        workers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for worker in workers:
            worker.start()
        # Seconds without progress count looks, not the clock: a machine that pauses the server pauses these, too.
        last, quiet, longest = -1, 0.0, 0.0
        memory = [(0, server.memory_kib())]  # after so many requests
        while any(worker.is_alive() for worker in workers):
            status = server.get("/v1/longspan/status", timeout=900).json
            done = status["totals"]["prefill_tokens"] + status["totals"]["decode_tokens"]
            quiet = quiet + 0.5 if done == last and status["queue"]["running"] else 0.0
            self.assertLess(quiet, 30, "seconds without progress")
            last, longest = done, max(longest, quiet)
            memory.append((len(asked), server.memory_kib()))
            time.sleep(0.5)
        self.assertEqual(errors, [])
        self.assertEqual(server.get("/health").status, 200)
        server.wait_until_idle()
        warm = [one for one in memory if one[0] >= len(asked) / 3]
        slope = slope_of(warm)
        print(f"T76: {len(asked)} requests in {time.monotonic() - start:.0f} s, longest look without progress "
              f"{longest:.1f} s, memory {memory[0][1]} KiB at first, {warm[0][1]} after a third, {warm[-1][1]} in the "
              f"end, {slope:.3f} KiB a request after the first third ", end="", flush=True)
        if servers.SOAK_SECONDS >= 300:
            self.assertLess(slope, 10, "KiB of memory for each request")

    def test_T80_SIGTERM_finishes_what_runs_and_refuses_what_is_new(self):
        with Server(binary="longspan_mock", env=mock_env(tokens_per_second=40)) as server:
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                running = [pool.submit(lambda: server.post(CHAT, says("Hi", max_tokens=80, stream=True)))
                           for _ in range(8)]
                server.wait_until(lambda s: len(s["requests"]) == 8)
                server.signal()
                late = server.post(CHAT, says("Hi"))
                while late.status == 200:
                    late = server.post(CHAT, says("Hi", max_tokens=1))
                self.assertEqual(late.status, 503)
                self.assertIn("retry-after", late.headers)
                self.assertEqual(server.get("/ready").status, 503)
                self.assertEqual(server.get("/health").status, 200)
                for one in running:
                    self.assertEqual(read_chat_stream(one.result())[0][0].finish_reason, "length")
            self.assertEqual(server.process.wait(timeout=10), 0)

    def test_T80_a_second_SIGTERM_ends_at_once(self):
        with Server(binary="longspan_mock", env=mock_env(tokens_per_second=1)) as server:
            connection = raw_post(server, endless(stream=True))
            server.wait_until(lambda s: s["queue"]["running"] == 1)
            server.signal()
            deadline = time.monotonic() + 5
            while "shutting down" not in server.log and time.monotonic() < deadline:
                time.sleep(0.02)
            time.sleep(0.1)
            server.signal()
            self.assertNotEqual(server.process.wait(timeout=5), 0)
            connection.close()

    def test_T80_SIGKILL_leaves_nothing_in_the_way_of_a_restart(self):
        with Server(binary="longspan_mock") as server:
            connection = raw_post(server, endless(stream=True))
            server.signal(signal.SIGKILL)
            server.process.wait()
            connection.close()
            with Server(binary="longspan_mock", port=server.port) as again:
                self.assertEqual(again.port, server.port)
                self.assertEqual(again.get("/ready").status, 200)

    def test_T81_comments_by_the_clock_even_when_one_step_stalls(self):
        with Server("--sse-keepalive-seconds", 0.5, binary="longspan_mock",
                    env=mock_env(stall_seconds=4, stop_after=5)) as server:
            with concurrent.futures.ThreadPoolExecutor(3) as pool:
                usual = pool.submit(lambda: server.post(CHAT, says("Hi", stream=True)))
                silent = pool.submit(lambda: server.post(CHAT, says("Hi", stream=True, sse_ping_interval=0)))
                claude = pool.submit(lambda: server.post("/v1/messages", {
                    "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9, "stream": True}))
                usual, silent, claude = usual.result(), silent.result(), claude.result()
        read_chat_stream(usual)
        times = [time for time, _ in usual.chunks]
        self.assertLess(times[0], 1, "the first byte comes at once")
        self.assertLess(max(b - a for a, b in zip(times, times[1:])), 3, "seconds of silence; the stall takes 4")
        self.assertGreater(len(usual.comments), 4)
        self.assertNotIn(b":", usual.body[usual.body.index(b"[DONE]"):])
        self.assertEqual(silent.comments, [])
        self.assertGreater(claude.body.count(b"event: ping"), 4)

    def test_T81_progress_of_a_long_prompt(self):
        server = servers.mock(prefill_tokens_per_second=8000, chunk_tokens=1000, stop_after=3)
        reply = server.post(CHAT, says("word " * 4000, stream=True, return_progress=True))
        read_chat_stream(reply, progress=True)
        progress = [event["prompt_progress"] for event in reply.events[:-1] if "prompt_progress" in event]
        done = [one["processed"] for one in progress]
        self.assertEqual(done, sorted(set(done)))
        self.assertGreater(len(done), 3)
        self.assertEqual(done[-1], progress[-1]["total"])

    def test_T76_health_turns_red_when_a_step_stalls(self):
        env = {"LONGSPAN_ENGINE_RPC_TIMEOUT_SECONDS": "2", **mock_env(stall_seconds=4)}
        with Server(binary="longspan_mock", env=env) as server:
            connection = raw_post(server, says("Hi"))
            server.wait_until(lambda s: s["queue"]["running"] == 1)
            self.assertEqual(server.get("/health").status, 200)
            time.sleep(2.2)
            self.assertEqual(server.get("/health").status, 503)
            self.assertEqual(server.get("/ready").status, 503)
            time.sleep(2.5)
            self.assertEqual(server.get("/health").status, 200)
            connection.close()

    def test_T76_the_watchdog_hears_nothing_while_a_step_stalls(self):
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(f"{folder}/notify")
            manager.settimeout(20)
            env = {"NOTIFY_SOCKET": f"{folder}/notify", "WATCHDOG_USEC": "400000",
                   "LONGSPAN_ENGINE_RPC_TIMEOUT_SECONDS": "1", **mock_env(stall_seconds=8)}
            with Server(binary="longspan_mock", env=env) as server:
                self.assertEqual([manager.recv(99) for _ in range(3)], [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"])
                connection = raw_post(server, says("Hi"))
                server.wait_until(lambda s: s["step_seconds"] > 1.5)
                manager.setblocking(False)
                with contextlib.suppress(BlockingIOError):  # what was said before
                    while manager.recv(99):
                        pass
                manager.settimeout(2)
                with self.assertRaises(TimeoutError):
                    manager.recv(99)
                manager.settimeout(20)
                self.assertEqual(manager.recv(99), b"WATCHDOG=1")  # the step has ended
                connection.close()

    def test_a_late_answer_ends_with_an_error_that_nobody_repeats(self):
        with Server("--request-timeout-seconds", 1, binary="longspan_mock", env=mock_env(tokens_per_second=20)) as server:
            whole = server.post(CHAT, endless())
            self.assertEqual((whole.status, whole.error["code"]), (408, "request_timeout"))
            self.assertEqual(whole.headers["x-should-retry"], "false")
            streamed = server.post(CHAT, endless(stream=True))
            self.assertEqual(streamed.events[-2]["error"]["code"], "request_timeout")
            self.assertGreater(len(streamed.events), 5, "what was there in time was sent")
            self.assertEqual(server.post(CHAT, says("Hi", max_tokens=4)).status, 200)
            server.wait_until_idle()

    def test_T82_the_key_and_the_texts_are_in_no_log(self):
        key, secret = "sk-very-secret-key-4711", "xyzzy-plugh-text"
        with Server("--api-key", key, binary="longspan_mock", env=mock_env(stop_after=5)) as server:
            bearer = {"Authorization": f"Bearer {key}"}
            self.assertEqual(server.request("POST", CHAT, says(secret), bearer).status, 200)
            self.assertEqual(server.request("POST", CHAT, says(secret), {"Authorization": f"Bearer {key}x"}).status, 401)
            self.assertEqual(server.request("POST", CHAT, b"{" + secret.encode(), bearer).status, 400)
            self.assertEqual(server.request("GET", f"/v1/models?key={key}", headers={"x-api-key": key}).status, 200)
            time.sleep(0.3)  # a request's line is written behind its answer
            log = server.log
        self.assertNotIn(key, log)
        self.assertNotIn(secret, log)
        self.assertEqual(len(re.findall(r"/v1/chat/completions \S+: \d+ prompt tokens", log)), 1)


def mock_env(**script):
    return {"MOCK_ENGINE": json.dumps(script)}


if __name__ == "__main__":
    unittest.main()
