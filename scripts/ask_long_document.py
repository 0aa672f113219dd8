#!/usr/bin/env python3
"""Asks a running server one question about a document and prints the answer as it streams, with its timings:
ask_long_document.py BASE_URL DOCUMENT.txt QUESTION"""
import json
import pathlib
import sys
import time
import urllib.request


def events(response):
    """The JSON events of a server-sent event stream; comments (keep-alive) are skipped."""
    for line in response:
        text = line.decode("utf-8").strip()
        if text == "data: [DONE]":
            return
        if text.startswith("data: "):
            yield json.loads(text[len("data: "):])


def main(base_url, document, question):
    with urllib.request.urlopen(f"{base_url}/v1/models") as response:
        model = json.load(response)["data"][0]["id"]
    content = pathlib.Path(document).read_text(encoding="utf-8") + "\n" + question
    body = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 64, "temperature": 0,
            "stream": True, "stream_options": {"include_usage": True}}
    request = urllib.request.Request(f"{base_url}/v1/chat/completions", json.dumps(body).encode("utf-8"),
                                     {"Content-Type": "application/json"})
    usage, first = None, None
    start = time.monotonic()
    with urllib.request.urlopen(request, timeout=1800) as response:
        print("Answer:        ", end="", flush=True)
        for event in events(response):
            if "error" in event:
                sys.exit(f"\nask_long_document: {event['error']}")
            usage = event.get("usage") or usage
            text = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
            if text and first is None:
                first = time.monotonic()
            print(text, end="", flush=True)
    end = time.monotonic()
    print()
    if first is None or usage is None:
        sys.exit("ask_long_document: the stream ended without an answer or without usage")
    prompt_tokens, completion_tokens = usage["prompt_tokens"], usage["completion_tokens"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    print(f"Prompt:        {prompt_tokens} tokens, {cached} of them from the cache")
    print(f"First token:   {first - start:.2f} s ({(prompt_tokens - cached) / (first - start):.0f} prompt tokens/s)")
    if completion_tokens > 1:
        print(f"Decoding:      {completion_tokens} tokens, {(completion_tokens - 1) / (end - first):.1f} tokens/s")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
