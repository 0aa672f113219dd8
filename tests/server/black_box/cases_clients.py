"""The clients that people use, where they are installed: openai and anthropic. Nothing here needs a network."""
import json
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

import servers
from harness import Server, says

try:
    import openai
except ImportError:
    openai = None
try:
    import anthropic
except ImportError:
    anthropic = None

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Get the weather of a city.",
                                         "parameters": WEATHER}}
NO_THINK = {"chat_template_kwargs": {"enable_thinking": False}}
HELLO = [{"role": "user", "content": "Hello!"}]
KYOTO = [{"role": "user", "content": "What is the weather in Kyoto?"}]


@unittest.skipUnless(openai, "openai is not installed")
class OpenAi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.client = openai.OpenAI(base_url=servers.plain().url + "/v1", api_key="EMPTY", max_retries=0)
        cls.model = cls.client.models.list().data[0].id

    def chat(self, messages, **more):
        return self.client.chat.completions.create(
            model=self.model, messages=messages, **{"temperature": 0, "max_tokens": 64, "extra_body": NO_THINK, **more})

    def test_openai_chat_whole_and_streamed(self):
        whole = self.chat(HELLO)
        with self.chat(HELLO, stream=True, stream_options={"include_usage": True}) as stream:
            chunks = list(stream)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(chunks[-1].usage, whole.usage)
        self.assertTrue(whole._request_id)

    def test_openai_tools_and_their_results(self):
        message = self.chat(KYOTO, tools=[TOOL]).choices[0].message
        (call,) = message.tool_calls
        self.assertEqual(json.loads(call.function.arguments)["city"], "Kyoto")
        history = [*KYOTO, message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
        self.assertTrue(self.chat(history, tools=[TOOL]).choices[0].message.content)
        with self.client.chat.completions.stream(model=self.model, messages=KYOTO, tools=[TOOL], temperature=0,
                                                 max_tokens=64, extra_body=NO_THINK) as stream:
            streamed = stream.get_final_completion().choices[0].message
        self.assertEqual(streamed.tool_calls[0].function.arguments, call.function.arguments)

    def test_openai_logprobs_choices_and_completions(self):
        choice = self.chat(HELLO, logprobs=True, top_logprobs=2, n=2).choices[1]
        self.assertEqual(len(choice.logprobs.content[0].top_logprobs), 2)
        text = self.client.completions.create(model=self.model, prompt="One two", max_tokens=4, temperature=0, echo=True)
        self.assertTrue(text.choices[0].text.startswith("One two"))

    def test_openai_responses(self):
        whole = self.client.responses.create(model=self.model, input="Hello!", max_output_tokens=40, temperature=0)
        self.assertTrue(whole.output_text)
        events = list(self.client.responses.create(model=self.model, input="Hello!", max_output_tokens=40, temperature=0,
                                                   stream=True))
        self.assertEqual(events[-1].response.output_text, whole.output_text)

    def test_openai_errors_have_their_classes(self):
        for kind, ask in ((openai.BadRequestError, lambda: self.chat([])),
                          (openai.BadRequestError, lambda: self.chat(HELLO, temperature=-1)),
                          (openai.NotFoundError, lambda: self.client.models.retrieve("nobody"))):
            with self.assertRaises(kind) as caught:
                ask()
            self.assertTrue(caught.exception.body["message"])

    def test_openai_retries_while_the_queue_is_full(self):
        with Server("--max-num-seqs", 1, "--max-waiting", 1) as server, ThreadPoolExecutor(3) as pool:
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="EMPTY", max_retries=0)
            ask = {"model": self.model, "messages": HELLO, "max_tokens": 1}
            long = says("Hi", max_tokens=20000, ignore_eos=True, stream=True)
            streams = [pool.submit(server.post, "/v1/chat/completions", long) for _ in range(2)]
            full = server.wait_until(lambda s: s["queue"]["running"] == s["queue"]["waiting"] == 1)
            with self.assertRaises(openai.InternalServerError) as refused:
                client.chat.completions.create(**ask)
            self.assertEqual(refused.exception.status_code, 503)
            patient = pool.submit(client.with_options(max_retries=5).chat.completions.create, **ask)
            time.sleep(0.2)  # its first try is refused as well
            for request in full["requests"]:
                server.post(f"/v1/requests/{request['id']}/cancel", {})
            self.assertEqual(patient.result().usage.completion_tokens, 1)
            for stream in streams:
                stream.result()


@unittest.skipUnless(anthropic, "anthropic is not installed")
class Anthropic(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.client = anthropic.Anthropic(base_url=servers.plain().url, api_key="EMPTY", max_retries=0)

    def ask(self, messages, **more):
        return {"model": "longspan-tiny", "max_tokens": 64, "extra_body": {"temperature": 0}, "messages": messages, **more}

    def test_anthropic_messages_whole_and_streamed(self):
        whole = self.client.messages.create(**self.ask(HELLO))
        with self.client.messages.stream(**self.ask(HELLO)) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole.content[0].text)
        self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)
        self.assertEqual(final.stop_reason, whole.stop_reason)

    def test_anthropic_tools_and_their_results(self):
        tools = [{"name": "get_weather", "description": "Get the weather of a city.", "input_schema": WEATHER}]
        answer = self.client.messages.create(**self.ask(KYOTO, tools=tools))
        self.assertEqual(answer.stop_reason, "tool_use")
        (call,) = [block for block in answer.content if block.type == "tool_use"]
        self.assertEqual(call.input["city"], "Kyoto")
        history = [*KYOTO, {"role": "assistant", "content": [block.model_dump() for block in answer.content]},
                   {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]}]
        self.assertTrue(self.client.messages.create(**self.ask(history, tools=tools)).content)

    def test_anthropic_thinking_and_counting(self):
        with self.client.messages.stream(**self.ask(
                [{"role": "user", "content": "What is 4 + 5?"}], max_tokens=1500,
                thinking={"type": "enabled", "budget_tokens": 1024})) as stream:
            kinds = {block.type for block in stream.get_final_message().content}
        self.assertIn("thinking", kinds)
        counted = self.client.messages.count_tokens(model="longspan-tiny", messages=HELLO).input_tokens
        self.assertEqual(counted, self.client.messages.create(**self.ask(HELLO)).usage.input_tokens)

    def test_anthropic_errors_have_their_classes(self):
        with self.assertRaises(anthropic.BadRequestError):
            self.client.messages.create(**self.ask([]))


if __name__ == "__main__":
    unittest.main()
