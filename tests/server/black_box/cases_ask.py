"""`longspan ask`, the client that comes with the server."""
import json
import pathlib
import subprocess
import tempfile
import unittest

import servers
from harness import ROOT, Server, content, program, says


def ask(*arguments, settings=None, **more):
    """-> the finished process; `settings` become a settings.json in the folder it runs in."""
    with tempfile.TemporaryDirectory() as folder:
        if settings is not None:
            pathlib.Path(folder, "settings.json").write_text(json.dumps(settings))
        return subprocess.run([program(), "ask", *map(str, arguments)], cwd=folder, capture_output=True, text=True,
                              timeout=120, **more)


class Ask(unittest.TestCase):
    def settings(self, server=None, **more):
        fixture = json.loads((ROOT / "tests/fixtures/config/settings.json").read_text())
        return {**fixture, "api_base": (server or servers.plain()).url, "model": "longspan-tiny", **more}

    def test_ask_streams_and_tells_its_times(self):
        done = ask("Hello!", "--no-thinking", settings=self.settings())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.strip(), content(servers.plain().post("/v1/chat/completions", says("Hello!")).json))
        self.assertRegex(done.stderr, r"prompt tokens \(0 cached\), first token after .* answer tokens at .* tokens/s; stop")

    def test_ask_json_tells_all_of_it(self):
        answer = json.loads(ask("What is 4 + 5?", "--thinking", "--json", settings=self.settings()).stdout)
        self.assertTrue(answer["reasoning"])
        self.assertNotIn("think>", answer["text"])
        for name in ("prompt_tokens", "completion_tokens", "ttft_ms", "tokens_per_second", "finish_reason"):
            self.assertTrue(answer[name], name)
        whole = json.loads(ask("Hello!", "--json", settings=self.settings(default_params={"stream": False})).stdout)
        self.assertIsNone(whole["ttft_ms"])
        self.assertTrue(whole["text"])

    def test_ask_warns_of_time_outs_that_would_waste_a_prefill(self):
        # The fixture expects what this server does not have: a context of 131,072 tokens.
        warned = json.loads(ask("Hello!", "--json", settings=self.settings()).stdout)["warnings"]
        self.assertEqual([line.split(":")[0] for line in warned], ["long_context.max_model_len"])
        short = self.settings(timeout={"connect_seconds": 5, "read_seconds": 60}, long_context={})
        done = ask("Hello!", settings=short)
        self.assertEqual(done.returncode, 0)
        self.assertIn("timeout.read_seconds: 60 s is below the server's", done.stderr)
        with Server("--sse-keepalive-seconds", 0, binary="longspan_mock",
                    env={"MOCK_ENGINE": json.dumps({"stop_after": 2})}) as server:
            done = ask("Hello!", settings=self.settings(server))
            self.assertIn("lets streams be silent for as long as a prompt takes", done.stderr)

    def test_ask_gives_up_after_its_read_timeout(self):
        with Server("--sse-keepalive-seconds", 0, binary="longspan_mock",
                    env={"MOCK_ENGINE": json.dumps({"stall_seconds": 5})}) as server:
            short = self.settings(server, timeout={"connect_seconds": 5, "read_seconds": 0.5})
            done = ask("Hello!", settings=short)
            self.assertEqual(done.returncode, 3)
            self.assertIn("sent nothing for 0.5 s: the read timeout", done.stderr)

    def test_ask_reads_keys_prompts_and_addresses_from_everywhere(self):
        with Server("--api-key", "k1", binary="longspan_mock",
                    env={"MOCK_ENGINE": json.dumps({"stop_after": 2})}) as server:
            base = {"api_base": server.url + "/v1/", "timeout": {"read_seconds": 1000}}
            self.assertEqual(ask("Hi", "--api-key", "k1", settings=base).returncode, 0)
            self.assertEqual(ask("Hi", settings={**base, "api_key": "k1"}).returncode, 0)
            self.assertEqual(ask("--prompt-file", "-", "--api-key", "k1", settings=base, input="Hi").returncode, 0)
            wrong = ask("Hi", settings={**base, "api_key": "wrong"})
            self.assertEqual(wrong.returncode, 2)
            self.assertIn("401", wrong.stderr)

    def test_ask_names_what_is_wrong(self):
        for arguments, settings, code, words in (
                ((), {}, 2, "no prompts"), (("Hi", "--prompt-file", "x"), {}, 2, "two prompts"),
                (("Hi",), {"apibase": "x"}, 2, "apibase: unknown"),
                (("Hi",), {"api_base": "ftp://x"}, 2, "need http://"), (("Hi",), {"api_base": "https://x"}, 2, "no TLS"),
                (("Hi",), {"timeout": {"read_seconds": -1}}, 2, "timeout.read_seconds"),
                (("Hi",), {"timeout": {"read": 1}}, 2, "need connect_seconds or read_seconds"),
                (("Hi", "--api-base", "http://127.0.0.1:9"), {}, 3, "cannot connect"),
                (("Hi", "--model", "nobody"), self.settings(), 2, "model_not_found|does not|has '")):
            done = ask(*arguments, settings=settings)
            self.assertEqual(done.returncode, code, (arguments, settings, done.stderr))
            self.assertRegex(done.stderr, words)


if __name__ == "__main__":
    unittest.main()
