"""9a, 9b: text, stop strings, streams, tool calls."""
import json
import random
import unittest

import servers
from harness import CHAT, TEXT, both_ways, content, read_chat_stream, says

THINK = {"chat_template_kwargs": {"enable_thinking": True}}
NO_THINK = {"chat_template_kwargs": {"enable_thinking": False}}
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Get the weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                   "required": ["city"]}}}
ADD = {"type": "function", "function": {
    "name": "multiply", "description": "Multiply two numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                   "required": ["a", "b"]}}}
CITIES = ["Kyoto", "Oslo", "Lima", "Cairo", "Paris", "Quito", "Turin", "Delhi", "Hanoi", "Seoul"]
TAGS = ("<tool_call>", "</tool_call>", "<function=", "<parameter=", "<think>", "</think>", "<|im_end|>")


def call_text(function, /, **arguments):
    """As the model writes a call."""
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={function}>\n{parameters}</function>\n</tool_call>"


def prompts():
    """Mixed scripts, emoji, sums."""
    texts = ["鬱龘🫠👨‍👩‍👧‍👦 ďábelské", "naïve café — “quotes” …", "Здравствуйте, мир", "مرحبا بالعالم", "हिन्दी में", "한국어 문장",
             "日本語の文", "x = 3; y = 4", "🏳️‍🌈🇯🇵👍🏽", "a\tb\nc"]
    for i in range(servers.often(20, 200)):
        text = texts[i % len(texts)]
        yield [f"Repeat exactly: {text} {i}", f"What is {i} + {i % 7}?", f"你好 {i}"][i % 3 if i >= len(texts) else 0]


class Text(unittest.TestCase):
    def test_T01_T11_streams_equal_whole_answers_in_many_scripts(self):
        for prompt in prompts():
            answer = both_ways(servers.plain(), says(prompt, ignore_eos=True))
            self.assertNotIn("�", content(answer))

    def test_T03_many_tokens_in_one_chunk_lose_no_character(self):
        text = "鬱龘🫠👨‍👩‍👧‍👦 ďábelské " * 5
        server = servers.mock_says(text)
        for _ in range(20):
            choices, _ = read_chat_stream(server.post(CHAT, says("Hi", max_tokens=4000, stream=True)))
            self.assertEqual(choices[0].content, text)

    def test_T04_every_cut_inside_of_a_character_is_the_same_both_ways(self):
        server = servers.mock_says("🫠👨‍👩‍👧‍👦鬱龘" * 3)
        for k in range(1, 31):
            answer = both_ways(server, says("Hi", max_tokens=k), broken_text=True)
            self.assertEqual(answer["choices"][0]["finish_reason"], "length")
            self.assertTrue(("🫠👨‍👩‍👧‍👦鬱龘" * 3).startswith(content(answer).rstrip("�")), content(answer))

    def test_T05_no_part_of_a_stop_string_is_sent(self):
        server = servers.mock_says("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
        answer = both_ways(server, says("Here is the English alphabet: ABC", stop=["DEFGHIJ"]))
        self.assertEqual(content(answer), "ABC")
        self.assertEqual(answer["choices"][0]["finish_reason"], "stop")
        self.assertEqual(content(both_ways(server, says("Hi", max_tokens=99, stop=["XYZA", "Z!"]))),
                         "ABCDEFGHIJKLMNOPQRSTUVWXYZ")

    def test_T08_a_stop_string_does_not_end_the_reasoning(self):
        server = servers.mock_says("The Question: is easy.\n</think>\n\nIt is 9. Question: what else?")
        answer = both_ways(server, says("Hi", max_tokens=99, stop=["Question:"], **THINK))
        message = answer["choices"][0]["message"]
        self.assertEqual(message["reasoning_content"], "The Question: is easy.")
        self.assertEqual(message["content"], "It is 9. ")
        self.assertEqual(answer["choices"][0]["stop_reason"], "Question:")

    def test_T09_no_tag_of_reasoning_gets_into_the_content(self):
        for prompt in ["What is 4 + 5?", "Hello", "你是谁？", "Thanks"]:
            answer = both_ways(servers.plain(), says(prompt, max_tokens=96, stop=["zzzz", "<"], **THINK))
            self.assertFalse([tag for tag in TAGS if tag in json.dumps(answer)], answer)

    def test_T10_the_end_of_a_stream_goes_through_all_parsers(self):
        server = servers.mock_says("Let me see. " + call_text("get_weather", city="Kyoto"))
        answer = both_ways(server, says("Hi", max_tokens=200, stop=["zzzz", "</tool_callx"], tools=[WEATHER]))
        self.assertEqual(content(answer).strip(), "Let me see.")
        self.assertEqual(answer["choices"][0]["finish_reason"], "tool_calls")

    def test_T12_usage_comes_when_asked_for_and_equals_that_of_the_whole_answer(self):
        server = servers.plain()
        for extra in ({"max_tokens": 3}, {"stop": ["o"]}, {"tools": [WEATHER], "max_tokens": 96}):
            both_ways(server, says("What is the weather in Kyoto?", **extra))
        read_chat_stream(server.post(CHAT, says("Hi", stream=True)))  # not asked for
        body = {"prompt": "One two", "max_tokens": 5, "temperature": 0}
        whole = server.post(TEXT, body).json
        for options in (None, {"include_usage": True}, {"include_usage": False}):
            events = server.post(TEXT, {**body, "stream": True, "stream_options": options}).events
            usages = [event["usage"] for event in events[:-1] if event.get("usage")]
            self.assertEqual(usages, [whole["usage"]] if (options or {}).get("include_usage") else [])

    def test_T13_a_prompt_that_is_too_long_is_400_in_front_of_any_stream(self):
        reply = servers.plain().post(TEXT, {"prompt": [7] * 70000, "stream": True})
        self.assertEqual(reply.status, 400)
        self.assertEqual(reply.error["code"], "context_length_exceeded")


class Tools(unittest.TestCase):
    def test_T14_T15_every_parameter_arrives_streamed_or_not(self):
        server = servers.mock_says("\n\n" + call_text("multiply", a=5, b=42))
        answer = both_ways(server, says("What's 5 times forty two", max_tokens=200, tools=[ADD]))
        (call,) = answer["choices"][0]["message"]["tool_calls"]
        self.assertEqual(json.loads(call["function"]["arguments"]), {"a": 5, "b": 42})

    def test_T15_T16_tool_prompts_leave_no_tags_in_the_content(self):
        calls = 0
        for i in range(servers.often(10, 100)):
            prompt = f"What is the weather in {CITIES[i % len(CITIES)]}?" if i % 5 else f"Hello {i}"
            answer = both_ways(servers.plain(), says(prompt, max_tokens=96, tools=[WEATHER]))
            self.assertFalse([tag for tag in TAGS if tag in json.dumps(answer)], answer)
            calls += len(answer["choices"][0]["message"].get("tool_calls", []))
        self.assertGreater(calls, 0)

    def test_T16_text_in_front_of_a_call_and_missing_newlines(self):
        for text in ("Sure.<tool_call><function=get_weather><parameter=city>Oslo</parameter></function></tool_call>",
                     "Sure.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>"):
            answer = both_ways(servers.mock_says(text), says("Hi", max_tokens=200, tools=[WEATHER]))
            (call,) = answer["choices"][0]["message"]["tool_calls"]
            self.assertEqual(json.loads(call["function"]["arguments"]), {"city": "Oslo"})
            self.assertEqual(content(answer).strip(), "Sure.")

    def test_T17_a_call_inside_of_the_reasoning_is_made(self):
        server = servers.mock_says("I need the weather.\n" + call_text("get_weather", city="Lima"))
        answer = both_ways(server, says("Hi", max_tokens=200, tools=[WEATHER], **THINK))
        message = answer["choices"][0]["message"]
        self.assertEqual(message["tool_calls"][0]["function"]["name"], "get_weather")
        self.assertEqual(message["reasoning_content"], "I need the weather.")

    def test_T17_an_agent_s_turns_are_never_empty(self):
        messages = [{"role": "user", "content": "What is the weather in Kyoto?"}]
        for turn in range(servers.often(6, 20)):
            answer = servers.caching().post(CHAT, {"messages": messages, "tools": [WEATHER], "temperature": 0,
                                                   "max_tokens": 160, **THINK}).json
            message = answer["choices"][0]["message"]
            self.assertTrue(message["content"] or message.get("tool_calls"), answer)
            messages.append(message)
            if message.get("tool_calls"):
                messages += [{"role": "tool", "tool_call_id": call["id"], "content": '{"weather": "sunny"}'}
                             for call in message["tool_calls"]]
            else:
                messages.append({"role": "user", "content": f"What is the weather in {CITIES[turn % 10]}?"})

    def test_T18_reasoning_and_a_call_stream_apart(self):
        server = servers.mock_says("Hm.\n</think>\n\n" + call_text("get_weather", city="Cairo", days=3))
        answer = both_ways(server, says("Hi", max_tokens=200, tools=[WEATHER], **THINK))
        message = answer["choices"][0]["message"]
        self.assertEqual(message["content"] or "", "")
        self.assertEqual(message["reasoning_content"], "Hm.")
        self.assertEqual(json.loads(message["tool_calls"][0]["function"]["arguments"]), {"city": "Cairo", "days": 3})

    def test_T19_arguments_have_the_types_of_the_schema(self):
        schema = {"zip": {"type": "string"}, "size": {"type": "string"}, "n": {"type": "integer"},
                  "on": {"type": "boolean"}, "maybe": {"type": ["string", "null"]}, "name": {"type": "string"},
                  "rows": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
                  "any": {"anyOf": [{"type": "integer"}, {"type": "string"}]}}
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": schema}}}
        text = call_text("f", zip="02134", size="1e5", n="30", on="True", maybe="null", name="null",
                         rows="[[1, 2], [3]]", any="7")
        answer = both_ways(servers.mock_says(text), says("Hi", max_tokens=400, tools=[tool]))
        arguments = json.loads(answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])
        self.assertEqual(arguments, {"zip": "02134", "size": "1e5", "n": 30, "on": True, "maybe": None, "name": "null",
                                     "rows": [[1, 2], [3]], "any": 7})

    def test_T21_a_call_that_the_limit_cuts_is_not_made(self):
        server = servers.mock_says(call_text("get_weather", city="Kyoto", days=3))
        whole = server.post("/tokenize", {"prompt": call_text("get_weather", city="Kyoto", days=3)}).json["count"]
        for k in range(1, whole - 6, 3):
            answer = both_ways(server, says("Hi", max_tokens=k, tools=[WEATHER]))
            self.assertEqual(answer["choices"][0]["finish_reason"], "length")
            self.assertNotIn("tool_calls", answer["choices"][0]["message"])

    def test_T22_finish_reasons_of_every_choice(self):
        server = servers.mock_says(call_text("get_weather", city="Kyoto"))
        answer = both_ways(server, says("Hi", max_tokens=200, tools=[WEATHER], tool_choice="auto"))
        self.assertEqual(answer["choices"][0]["finish_reason"], "tool_calls")
        if not servers.has_constrained_decoding():
            self.skipTest("auto passed; required and named need constrained decoding")
        named = {"type": "function", "function": {"name": "get_weather"}}
        for choice, reason in (("required", "tool_calls"), (named, "stop")):
            body = says("What is the weather in Kyoto?", max_tokens=200, tools=[WEATHER], tool_choice=choice)
            answer = both_ways(servers.plain(), body)
            self.assertTrue(answer["choices"][0]["message"]["tool_calls"])
            self.assertEqual(answer["choices"][0]["finish_reason"], reason)

    def test_T24_arguments_of_the_history_as_text_or_object(self):
        server = servers.plain()
        rendered = set()
        for arguments in ('{"city": "Kyoto"}', {"city": "Kyoto"}):
            body = {"messages": [{"role": "user", "content": "Weather?"},
                                 {"role": "assistant", "content": None, "tool_calls": [
                                     {"id": "call_1", "type": "function",
                                      "function": {"name": "get_weather", "arguments": arguments}}]},
                                 {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}], "tools": [WEATHER]}
            rendered.add(server.post("/apply-template", body).json["prompt"])
            for empty in ("", "{}"):
                body["messages"][1]["tool_calls"][0]["function"]["arguments"] = empty
                self.assertEqual(server.post(CHAT, {**body, "max_tokens": 2}).status, 200)
        self.assertEqual(len(rendered), 1)
        self.assertIn("<parameter=city>\nKyoto\n</parameter>", rendered.pop())

    def test_T25_any_description_of_a_tool_is_taken(self):
        random.seed(25)
        alphabet = '"\'{}[]()\\/\n\t.*+?^$|<>%#:;,é鬱🫠\x00 \u2028'
        for i in range(servers.often(12, 200)):
            description = "".join(random.choices(alphabet, k=i * 7))
            tool = {"type": "function", "function": {
                "name": "glob", "description": description,
                "parameters": {"type": "object", "required": ["pattern"], "properties": {
                    "pattern": {"type": "string", "description": description}, "path": {"type": "string"}}}}}
            body = says("Hi", tools=[tool], max_tokens=2)
            if servers.has_constrained_decoding() and i % 2:
                body["tool_choice"] = "required"
            self.assertEqual(servers.plain().post(CHAT, body).status, 200, description)

    def test_T26_many_large_tools_are_taken(self):
        tools = [{"type": "function", "function": {
            "name": f"tool_{i}", "description": "It does one thing. " * 80,
            "parameters": {"type": "object", "properties": {
                f"p{j}": {"type": "string", "description": "A value.", "enum": ["a", "b"]} for j in range(4)}}}}
            for i in range(58)]
        self.assertGreater(len(json.dumps(tools)), 100_000)
        server = servers.mock(stop_after=3)  # what counts is the way to the engine
        for choice in ("auto", *(("required",) if servers.has_constrained_decoding() else ())):
            reply = server.post(CHAT, says("Hi", tools=tools, tool_choice=choice, max_tokens=1))
            self.assertEqual(reply.status, 200, reply.body)

    def test_T27_every_pair_of_tools_and_choice(self):
        server = servers.plain()
        for tools in (None, [], [WEATHER]):
            for choice in (None, "auto", "none"):
                for stream in (False, True):
                    reply = server.post(CHAT, says("Hi", tools=tools, tool_choice=choice, stream=stream, max_tokens=2))
                    self.assertEqual(reply.status, 200, (tools, choice, reply.body))
            for stream in (False, True):
                reply = server.post(CHAT, says("Hi", tools=tools, tool_choice="required", stream=stream, max_tokens=2))
                want = 200 if tools and servers.has_constrained_decoding() else 400
                self.assertEqual(reply.status, want, (tools, stream))
                if want == 400:
                    self.assertEqual(reply.headers["content-type"], "application/json")

    def test_T28_T48_each_token_has_its_logprobs_calls_and_reasoning_too(self):
        bodies = (says("What is the weather in Kyoto?", tools=[WEATHER], max_tokens=96),
                  says("What is 4 + 5?", max_tokens=96, **THINK), says("Hello!"))
        for body in bodies:
            answer = both_ways(servers.plain(), {**body, "logprobs": True, "top_logprobs": 3})
            entries = answer["choices"][0]["logprobs"]["content"]
            self.assertEqual(len(entries), answer["usage"]["completion_tokens"])
            for entry in entries:
                self.assertEqual(entry["top_logprobs"][0]["token"], entry["token"])
                self.assertTrue(-9999 <= entry["logprob"] <= 0, entry)


if __name__ == "__main__":
    unittest.main()
