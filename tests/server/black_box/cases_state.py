"""9f, 9g: prefix cache, recurrent state, preemption, long contexts."""
import concurrent.futures
import pathlib
import random
import re
import unittest

import servers
from harness import CHAT, ROOT, TEXT, Server, content, says

DOCUMENT = (pathlib.Path(ROOT) / "examples/long_document.txt").read_text(encoding="utf-8")
QUESTION = "\nWhat is the access code of Kyoto?"


def words(count, seed):
    random.seed(seed)
    return " ".join(random.choices(DOCUMENT.split(), k=count))


def ask(server, prompt, **more):
    """-> (text, usage)"""
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 16, "ignore_eos": True, **more}
    reply = server.post(TEXT, body)
    assert reply.status == 200, reply.body
    return reply.json["choices"][0]["text"], reply.json["usage"]


def cached(usage):
    return usage["prompt_tokens_details"]["cached_tokens"]


class PrefixCache(unittest.TestCase):
    def test_T56_an_answer_is_the_same_after_other_traffic(self):
        server = servers.caching()
        first, _ = ask(server, words(300, 1) + QUESTION)
        for i in range(servers.often(2, 30)):
            ask(server, words(1500, 50 + i) + QUESTION, max_tokens=4)
        again, usage = ask(server, words(300, 1) + QUESTION)
        self.assertEqual(again, first)
        self.assertEqual(first, ask(servers.plain(), words(300, 1) + QUESTION)[0], "and as without a cache")
        self.assertLessEqual(cached(usage), usage["prompt_tokens"])

    def test_T58_a_hit_gives_what_a_cold_run_gives(self):
        server = servers.caching()
        prompt, longer = words(900, 2), words(900, 2) + " " + words(200, 3)
        cold = {text: ask(servers.plain(), text)[0] for text in (prompt, longer)}
        self.assertEqual(ask(server, prompt)[0], cold[prompt])
        warm, usage = ask(server, prompt)
        self.assertEqual(warm, cold[prompt])
        self.assertGreater(cached(usage), 0)
        warm, usage = ask(server, longer)
        self.assertEqual(warm, cold[longer])
        self.assertGreater(cached(usage), 0)

    def test_T59_a_prompt_of_561_tokens_is_found_again(self):
        server = servers.caching()
        hits = server.status()["prefix_cache"]["hits"]
        prompt = [(i * 37) % 4000 for i in range(561)]
        ask(server, prompt, max_tokens=1)
        _, usage = ask(server, prompt + [5, 6, 7] * 20)
        self.assertGreater(cached(usage), 0)
        self.assertGreater(server.status()["prefix_cache"]["hits"], hits)

    def test_T60_T63_a_chat_computes_little_more_than_what_is_new(self):
        server = servers.caching()
        messages = [{"role": "system", "content": words(600, 4)}]
        computed, sizes = [], []
        for turn in range(servers.often(5, 10)):
            messages.append({"role": "user", "content": f"{words(60, 100 + turn)} What is {turn} + 4?"})
            answer = server.post(CHAT, {"messages": messages, "temperature": 0, "max_tokens": 24}).json
            usage = answer["usage"]
            computed.append(usage["prompt_tokens"] - cached(usage))
            sizes.append(usage["prompt_tokens"])
            messages.append(answer["choices"][0]["message"])
        for turn in range(1, len(computed)):
            new = sizes[turn] - sizes[turn - 1]
            self.assertLess(computed[turn], new + 700, f"turn {turn}: {computed} of {sizes}")
        self.assertLess(sum(computed[1:]), sum(sizes[1:]) / 2, f"{computed} of {sizes}")

    def test_T61_an_answer_asked_for_again_starts_again(self):
        server = servers.caching()
        body = {"messages": [{"role": "user", "content": DOCUMENT[:6000] + QUESTION}], "temperature": 0,
                "max_tokens": 24}
        answers = {content(server.post(CHAT, body).json) for _ in range(3)}
        ask(server, words(500, 6))
        answers.add(content(server.post(CHAT, body).json))
        self.assertEqual(len(answers), 1, answers)

    def test_T63_a_block_in_the_middle_reuses_what_is_in_front(self):
        server = servers.caching()
        a, b, c = words(800, 7), words(400, 8), words(200, 9)
        ask(server, f"{a} {b}")
        text, usage = ask(server, f"{a} {c} {b}")
        self.assertGreater(cached(usage), 0)
        self.assertEqual(text, ask(servers.plain(), f"{a} {c} {b}")[0])

    def test_T66_a_changing_billing_line_does_not_defeat_the_cache(self):
        server = servers.caching()

        def message(number):
            return server.post("/v1/messages", {
                "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}], "system": [
                    {"type": "text", "text": f"x-anthropic-billing-header: cc_version=1; cch={number};"},
                    {"type": "text", "text": words(900, 10), "cache_control": {"type": "ephemeral"}}]}).json["usage"]

        self.assertEqual(message("00aa1").get("cache_read_input_tokens", 0), 0)
        self.assertGreater(message("7f3b2")["cache_read_input_tokens"], 0)

    def test_T67_salts_share_nothing(self):
        server = servers.caching()
        prompt = words(800, 11)
        seen = [cached(ask(server, prompt, cache_salt=salt)[1]) for salt in ("a", "b", "a")]
        self.assertEqual(seen[:2], [0, 0])
        self.assertGreater(seen[2], 0)


class Preemption(unittest.TestCase):
    def test_T64_T65_answers_survive_a_cache_that_is_too_small(self):
        # Eight of them need 4 pages each at their start and 6 in the end; the cache has 36.
        count, length = servers.often(8, 64), 480
        prompts = [[(i * 131 + j * 37) % 4000 for j in range(430)] for i in range(count)]
        with Server("--max-num-seqs", 8, "--max-model-len", 1024, "--cache-memory", "32MiB") as small:
            with concurrent.futures.ThreadPoolExecutor(count) as pool:
                answers = list(pool.map(lambda prompt: ask(small, prompt, max_tokens=length), prompts))
            status = small.wait_until_idle()
        for i in range(0, count, count // 4):
            self.assertEqual(answers[i][0], ask(servers.plain(), prompts[i], max_tokens=length)[0])
        self.assertEqual({usage["completion_tokens"] for _, usage in answers}, {length})
        totals = status["totals"]
        print(f"T64: {totals['swap_outs']} swap-outs, {totals['replays']} replays ", end="", flush=True)
        self.assertGreater(totals["swap_outs"] + totals["replays"], 0, "the case needs a cache that is too small")


class LongContext(unittest.TestCase):
    def test_T68_a_needle_is_found_at_every_length_and_nothing_repeats(self):
        codes = dict(re.findall(r"access code of (\w+) is (\w+)", DOCUMENT))
        self.assertTrue(codes, "the example document has no codes")
        for size in (4000, 30000, *((60000, 100000) if servers.FULL else ())):
            text = DOCUMENT[:size]
            here = [(city, code) for city, code in codes.items() if f"access code of {city} is {code}" in text]
            if not here:
                continue
            city, code = here[len(here) // 2]
            body = says(f"{text}\nWhat is the access code of {city}?", max_tokens=64, ignore_eos=True, logprobs=True)
            answer = servers.plain().post(CHAT, body).json
            self.assertIn(code, content(answer), f"{answer['usage']['prompt_tokens']} tokens")
            tokens = [entry["token"] for entry in answer["choices"][0]["logprobs"]["content"]]
            longest = max((len(list(run)) for run in runs(tokens)), default=0)
            self.assertLess(longest, 33, tokens)
        self.assertEqual(servers.plain().status()["totals"]["non_finite"], 0)

    def test_T69_a_context_beyond_the_model_s_is_refused(self):
        with self.assertRaisesRegex(RuntimeError, "65536|65,536"):
            Server("--max-model-len", 1_000_000).stop()
        self.assertEqual(servers.plain().status()["max_model_len"], 65536)

    def test_T70_prompts_of_every_length(self):
        sizes = [*range(1, 40), 63, 64, 65, 127, 128, 129, 130, 131, 132, 133, 255, 256, 257, 1023, 1024, 1025, 2047, 2048]
        if servers.FULL:
            sizes = [*range(1, 2049), *(2**k + d for k in range(12, 16) for d in (-1, 0, 1))]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(lambda n: servers.plain().post(TEXT, {"prompt": [7] * n, "max_tokens": 1}), sizes))
        self.assertEqual([n for n, reply in zip(sizes, replies) if reply.status != 200], [])


def runs(tokens):
    """Stretches of one token."""
    stretch = []
    for token in tokens:
        if stretch and stretch[-1] != token:
            yield stretch
            stretch = []
        stretch.append(token)
    yield stretch


if __name__ == "__main__":
    unittest.main()
