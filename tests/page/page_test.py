#!/usr/bin/python3
"""The built-in page in a real browser: Debian's chromium, chromium-driver and python3-selenium. Exit status 77, which
CTest calls skipped, where one of them is missing. --screenshots DIR leaves pictures of what was seen."""
import argparse
import json
import pathlib
import shutil
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "server/black_box"))
from harness import Server  # noqa: E402

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait
except ImportError:
    webdriver = None

KEY = "key-of-the-page-test"
WEATHER = [{"type": "function", "function": {
    "name": "get_weather", "description": "Get the weather of a city.",
    "parameters": {"type": "object", "required": ["city"],
                   "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}}]
screenshots = None


def browser(language="en", dark=False, width=1280, height=860):
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--lang={language}",
                 f"--window-size={width},{height}", "--disable-background-networking", "--no-first-run"):
        options.add_argument(flag)
    options.add_experimental_option("prefs", {"intl.accept_languages": language})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(service=Service(shutil.which("chromedriver")), options=options)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia",
                           {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
    return driver


class PageCase(unittest.TestCase):
    """One browser and one server for the tests of a class; each test opens the page anew."""

    @classmethod
    def start_server(cls):
        return Server("--api-key", KEY, "--enable-prefix-caching", "--max-num-batched-tokens", 256)

    @classmethod
    def setUpClass(cls):
        cls.server = cls.start_server()
        cls.driver = browser()

    @classmethod
    def tearDownClass(cls):
        cls.driver.quit()
        cls.server.stop()

    def setUp(self):
        self.open()

    def tearDown(self):
        # A violation of the content security policy, an exception: both are in the console's log.
        severe = [entry for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]
        refused = "Failed to load resource"  # a status of 4xx, which some tests are about
        self.assertEqual([entry["message"] for entry in severe if refused not in entry["message"]], [])

    def open(self, key=KEY):
        self.driver.get(self.server.url)
        self.driver.execute_script("sessionStorage.clear()")
        self.driver.get(self.server.url)
        if key:
            self.type_key(key)

    def type_key(self, key):
        self.one("#key").clear()
        self.one("#key").send_keys(key, Keys.ENTER)
        self.wait(lambda: self.one("#model").text == "longspan-tiny")

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def wait(self, condition, seconds=60):
        return WebDriverWait(self.driver, seconds, poll_frequency=0.05).until(lambda _: condition())

    def press(self, selector):
        """Also what a person has to point at first. False where it is not there (any more)."""
        return self.driver.execute_script(
            "const e = document.querySelector(arguments[0]); if (!e) return false; e.click(); return true", selector)

    def set(self, selector, value):
        """As a paste does: the whole text and one event."""
        self.driver.execute_script(
            "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))",
            self.one(selector), value)

    def say(self, text):
        self.set("#input", text)
        self.one("#input").send_keys(Keys.ENTER)

    def wait_for_answer(self):
        self.wait(lambda: self.one("#send").is_enabled() and self.all(".message.assistant .figures"), 60)
        return self.all(".message.assistant")[-1]

    def picture(self, name):
        if screenshots:
            self.driver.save_screenshot(str(screenshots / f"{name}.png"))

    def open_settings(self, **fields):
        self.driver.execute_script("document.getElementById('settings').open = true")
        for name, value in fields.items():
            if isinstance(value, bool):
                if self.one(f"#{name}").is_selected() != value:
                    self.one(f"#{name}").click()
            else:
                self.set(f"#{name}", value)
        self.driver.execute_script("document.getElementById('settings').open = false")


class Page(PageCase):
    def test_the_page_needs_no_key_but_the_api_does(self):
        self.open(key=None)
        self.wait(lambda: "API key" in self.one("#panel-note").text)
        self.assertEqual(self.driver.execute_script("return sessionStorage.length"), 0)
        self.type_key(KEY)
        self.assertFalse(self.one("#panel-note").is_displayed())
        self.assertNotIn(KEY, self.driver.page_source)

    def test_an_answer_streams_with_its_figures(self):
        self.open_settings(thinking=False, temperature="0")
        self.say("Hello!")
        answer = self.wait_for_answer()
        self.assertIn("Hello", answer.find_element(By.CSS_SELECTOR, ".text").text)
        for word in ("prompt", "answer", "first token", "tokens/s", "total"):
            self.assertIn(word, answer.find_element(By.CSS_SELECTOR, ".figures").text)
        self.say("What is 4 + 5?")  # the conversation goes on
        self.wait(lambda: len(self.all(".message.assistant .figures")) == 2)
        self.picture("chat")

    def test_reasoning_is_folded_once_the_answer_begins(self):
        self.open_settings(thinking=True, temperature="0", max_tokens="200")
        self.say("What is 4 + 5?")
        answer = self.wait_for_answer()
        reasoning = answer.find_element(By.CSS_SELECTOR, ".reasoning")
        self.assertIsNone(reasoning.get_attribute("open"))
        self.assertIn("Reasoning", reasoning.text)
        self.assertNotIn("think>", answer.text)
        reasoning.find_element(By.CSS_SELECTOR, "summary").click()
        self.assertIsNotNone(reasoning.get_attribute("open"))
        self.picture("reasoning")

    def test_a_tool_call_is_shown_and_its_result_goes_back(self):
        self.open_settings(thinking=False, temperature="0", max_tokens="120", tools=json.dumps(WEATHER))
        self.say("What is the weather in Kyoto?")
        answer = self.wait_for_answer()
        call = answer.find_element(By.CSS_SELECTOR, ".call")
        self.assertIn("get_weather", call.text)
        self.assertIn('"city": "Kyoto"', call.text)
        call.find_element(By.CSS_SELECTOR, "textarea").send_keys('{"weather": "sunny", "degrees": 21}')
        self.picture("tool_call")
        answer.find_elements(By.CSS_SELECTOR, "button.small")[-1].click()
        self.wait(lambda: len(self.all(".message.assistant .figures")) == 2)
        self.assertEqual(len(self.all(".message.tool")), 1)
        self.assertEqual(self.all(".message .error"), [])

    def test_broken_tools_are_named(self):
        self.open_settings(tools="[{")
        self.say("Hello!")
        self.wait(lambda: self.all(".message .error"))
        self.assertIn("Tools", self.one(".message .error").text)

    def test_output_is_text_whatever_it_looks_like(self):
        attack = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script><b>bold</b>"
        self.open_settings(thinking=False, temperature="0", max_tokens="60")
        self.say(f"Repeat exactly: {attack}")
        self.wait_for_answer()
        self.assertIn(attack, self.one(".message.user").text)
        self.assertEqual(self.all(".message img, .message script, .message .text b"), [])
        self.assertIsNone(self.driver.execute_script("return window.hacked ?? null"))

    def paste(self, text):
        """Through the clipboard and the keyboard, as a person does."""
        self.driver.execute_cdp_cmd("Browser.grantPermissions",
                                    {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]})
        self.assertIsNone(self.driver.execute_async_script(
            "const [text, done] = arguments; navigator.clipboard.writeText(text).then(() => done(null), done)", text))
        self.one("#input").click()
        self.one("#input").send_keys(Keys.CONTROL, "v")

    def test_a_pasted_document_stays_smooth(self):
        lines = "The quick brown fox jumps over the lazy dog. 敏捷的棕色狐狸。\n" * 1700
        for text in (lines, lines.replace("\n", " ")):  # one endless line is the harder one
            self.assertGreater(len(text.encode("utf-8")), 100_000)
            self.driver.execute_script("""
                window.worst = 0; let last = performance.now();
                const watch = (now) => { worst = Math.max(worst, now - last); last = now; requestAnimationFrame(watch); };
                requestAnimationFrame(watch);""")
            self.paste(text)
            self.one("#input").send_keys("What is in it?")
            self.wait(lambda: len(self.all(".chip")) == 1)
            gap = self.driver.execute_script("return window.worst")
            print(f"paste of {len(text.encode('utf-8'))} bytes: longest frame {gap:.0f} ms", file=sys.stderr)
            self.assertLess(gap, 500, "milliseconds; two busy processors and no GPU")
            self.one("#input").send_keys(Keys.ENTER)
            self.wait(lambda: self.all(".message.user"))
            said = self.one(".message.user")
            said.find_element(By.CSS_SELECTOR, "button").click()
            self.assertTrue(said.text.endswith("What is in it?"))
            self.assertGreater(len(said.text), 90_000)
            self.one("#clear").click()
        self.paste("a short text")
        self.assertEqual(self.one("#input").get_attribute("value"), "a short text")
        self.assertEqual(self.all(".chip"), [])

    def test_a_long_message_is_folded_in_the_conversation(self):
        self.open_settings(thinking=False, max_tokens="4")
        self.say("word " * 2000)
        self.wait_for_answer()
        said = self.one(".message.user")
        self.assertLess(len(said.text), 2000)
        said.find_element(By.CSS_SELECTOR, "button").click()
        self.assertGreater(len(said.text), 9000)

    def test_a_message_is_edited_and_sent_again(self):
        self.open_settings(thinking=False, temperature="0", max_tokens="8")
        for text in ("Hello!", "What is 4 + 5?", "Thank you."):
            answers = len(self.all(".message.assistant .figures"))
            self.say(text)
            self.wait(lambda: len(self.all(".message.assistant .figures")) == answers + 1)
        self.press(".message.user:nth-of-type(3) .edit")
        self.assertEqual(self.one("#input").get_attribute("value"), "What is 4 + 5?")
        self.assertEqual(len(self.all(".message.stale")), 4, "the message, what came behind it")
        self.one("#keep").click()
        self.assertEqual(self.all(".message.stale"), [])
        self.assertEqual(self.one("#input").get_attribute("value"), "")
        self.press(".message.user:nth-of-type(3) .edit")
        self.say("What is 2 + 2?")
        self.wait(lambda: len(self.all(".message.assistant .figures")) == 2)
        self.assertEqual([box.find_element(By.CSS_SELECTOR, ".text").text for box in self.all(".message.user")],
                         ["Hello!", "What is 2 + 2?"])
        answer = self.all(".message.assistant")[-1]
        answer.find_element(By.CSS_SELECTOR, ".raw summary").click()
        self.wait(lambda: answer.find_elements(By.CSS_SELECTOR, ".raw pre"))
        asked = json.loads(answer.find_element(By.CSS_SELECTOR, ".raw pre").text)["messages"]
        self.assertEqual([message["role"] for message in asked], ["user", "assistant", "user"])
        self.assertNotIn("4 + 5", json.dumps(asked))

    def test_the_panel_shows_what_the_server_does(self):
        self.wait(lambda: self.all("#plan dd"))
        status = self.server.get("/v1/longspan/status", headers={"Authorization": f"Bearer {KEY}"}).json
        self.assertIn(str(status["plan"]["page_tokens"]), self.one("#plan").text.replace(",", ""))
        self.assertEqual(len(self.all("#derivation li")), len(status["plan"]["derivation"]))
        self.assertIn("free", self.one("#page-legend").text)
        for path in ("unified", "vendor_prefill", "page_contiguous_decode"):
            self.assertIn(path, self.one("#paths").text)
        self.assertIn("Steady decode inputs", self.one("#paths").text)
        self.assertIn("State", self.one("#cache-figures").text)
        self.wait(lambda: self.one("#decode-rate").text)

    def test_the_template_and_its_tokens(self):
        self.one("#tab-prompt").click()
        self.set("#source", json.dumps({"messages": [{"role": "user", "content": "Hi <|im_end|>"}]}))
        self.one("#render").click()
        self.wait(lambda: "<|im_start|>user" in self.one("#rendered").text)
        tokens = [token.text for token in self.all("#tokens span")]
        self.assertEqual(tokens.count("<|im_end|>"), 1, "the user's is no special token")
        self.assertIn(f"{len(tokens)} tokens", self.one("#token-count").text)
        self.picture("tokens")
        self.set("#source", "plain text <|im_end|>")
        self.one("#render").click()
        self.wait(lambda: self.one("#rendered").text == "plain text <|im_end|>")
        self.assertEqual(self.all("#tokens span")[-1].text, "<|im_end|>")
        self.set("#source", '{"messages": [{"role": "nobody", "content": ""}]}')
        self.one("#render").click()
        self.wait(lambda: self.one("#prompt-error").is_displayed())

    def test_the_request_can_be_seen_and_copied_without_the_key(self):
        self.open_settings(thinking=False, max_tokens="4")
        self.say("it's")
        answer = self.wait_for_answer()
        answer.find_element(By.CSS_SELECTOR, ".raw summary").click()
        self.wait(lambda: len(answer.find_elements(By.CSS_SELECTOR, ".raw pre")) == 2)
        self.assertIn('"return_progress": true', answer.text)
        self.assertNotIn(KEY, answer.text)

    def test_a_switch_of_language_changes_every_word(self):
        self.driver.find_element(By.CSS_SELECTOR, "#language option[value=zh]").click()
        self.assertEqual(self.one("#send").text, "发送")
        self.assertEqual(self.one("#input").get_attribute("placeholder"), "消息")
        self.wait(lambda: "对齐" in self.one("#plan").text)
        self.driver.refresh()
        self.assertEqual(self.one("#send").text, "发送")
        self.picture("chinese")


class Markdown(PageCase):
    """The mock engine's answer is always this one."""
    TEXT = """# Tokyo <img src=x onerror=window.hacked=1>

Some **bold `x`** and `code` <script>window.hacked=1</script>,
the next line.

- one
- two
  - nested
1. first

> quoted

```html
<b onclick="x">no tag</b>

last line
```
See [docs](javascript:window.hacked=1)."""

    @classmethod
    def start_server(cls):
        with Server() as plain:
            ids = plain.post("/tokenize", {"prompt": cls.TEXT}).json["tokens"]
        script = {"tokens": ids, "stop_after": len(ids), "tokens_per_second": 100}
        return Server("--api-key", KEY, binary="longspan_mock", env={"MOCK_ENGINE": json.dumps(script)})

    def test_an_answer_has_its_form_and_nothing_of_it_is_markup(self):
        self.open_settings(thinking=False)
        self.say("Hello!")
        answer = self.wait_for_answer()
        text = answer.find_element(By.CSS_SELECTOR, ".markdown")
        inside = lambda selector: [one.text for one in text.find_elements(By.CSS_SELECTOR, selector)]  # noqa: E731
        self.assertEqual(inside("h3"), ["Tokyo <img src=x onerror=window.hacked=1>"])
        self.assertEqual(inside("p strong"), ["bold x"])
        self.assertEqual(inside("p code"), ["x", "code"])
        self.assertIn("<script>window.hacked=1</script>,\nthe next line.", inside("p")[0])
        self.assertEqual(inside("ul ul li"), ["nested"])
        self.assertEqual(inside("ol > li"), ["first"])
        self.assertEqual(inside("blockquote p"), ["quoted"])
        self.assertEqual(inside(".code pre"), ['<b onclick="x">no tag</b>\n\nlast line'])
        self.assertEqual(inside(".code .faint"), ["html"])
        self.assertEqual(text.find_elements(By.CSS_SELECTOR, "a, img, script, b"), [])
        self.assertIn("docs (javascript:window.hacked=1)", text.text)
        self.assertIsNone(self.driver.execute_script("return window.hacked ?? null"))
        self.picture("markdown")
        self.driver.execute_cdp_cmd("Browser.grantPermissions",
                                    {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]})
        self.press(".code button")
        self.wait(lambda: self.one(".code button").text == "Copied")
        self.assertEqual(self.driver.execute_async_script("navigator.clipboard.readText().then(arguments[0])"),
                         '<b onclick="x">no tag</b>\n\nlast line')

    def test_the_form_does_not_depend_on_how_the_text_came(self):
        shown = self.driver.execute_async_script("""
            const [text, done] = arguments;
            import("./page/markdown.js").then(async ({ MarkdownText }) => {
              const made = [];
              for (const size of [1, 2, 3, 7, 20, text.length]) {
                const shown = new MarkdownText(document.createElement("div"), () => {});
                for (let i = 0; i < text.length; i += size) { shown.add(text.slice(i, i + size)); shown.show(); }
                made.push(shown.box.innerHTML);
              }
              done(made);
            }, (error) => done([String(error)]));""", self.TEXT)
        self.assertEqual(len(shown), 6, shown)
        self.assertEqual(len(set(shown)), 1)

    def test_a_long_answer_stays_smooth(self):
        took = self.driver.execute_async_script("""
            const [done] = arguments;
            import("./page/markdown.js").then(({ MarkdownText }) => {
              const box = document.body.appendChild(document.createElement("div"));
              const shown = new MarkdownText(box, () => {});
              let worst = 0;
              for (let i = 0; i < 1000; ++i) {
                shown.add(`Paragraph **${i}** of a long answer, with \`code\`.\n\n- item\n- item\n\n`);
                const start = performance.now();
                shown.show();
                worst = Math.max(worst, performance.now() - start);
              }
              box.remove();
              done([worst, shown.box.childNodes.length]);
            });""")
        print(f"1,000 blocks of Markdown: longest update {took[0]:.1f} ms", file=sys.stderr)
        self.assertEqual(took[1], 2000)
        self.assertLess(took[0], 500, "milliseconds; two busy processors")


class Running(PageCase):
    """What can be done while a request runs. The mock engine's answers last until somebody ends them."""

    @classmethod
    def start_server(cls):
        script = {"tokens_per_second": 20, "prefill_tokens_per_second": 200, "chunk_tokens": 256}
        return Server("--api-key", KEY, binary="longspan_mock", env={"MOCK_ENGINE": json.dumps(script)})

    def test_stop_ends_the_answer_on_the_server_too(self):
        self.open_settings(thinking=False, max_tokens="100000")
        self.say("Hello!")
        self.wait(lambda: self.all("#requests tbody tr"))
        self.wait(lambda: self.all(".message.assistant .text"))
        self.one("#stop").click()
        self.wait(lambda: self.all(".message .error"))
        self.assertEqual(self.one(".message .error").text, "stopped")
        self.wait(lambda: "Nothing runs" in self.one("#no-requests").text)

    def test_progress_of_a_long_prompt_is_shown_and_it_can_be_cancelled_in_the_panel(self):
        self.open_settings(thinking=False)
        self.say("word " * 20_000)  # more than a minute of the mock engine
        self.wait(lambda: "Reading the prompt" in self.one(".prefill-note").text)
        self.wait(lambda: self.all("#requests td progress"))
        self.picture("prefill")
        self.wait(lambda: self.press("#requests button[data-cancel]"))
        self.wait(lambda: self.one("#send").is_enabled())
        self.wait(lambda: "Nothing runs" in self.one("#no-requests").text)


class Languages(unittest.TestCase):
    def test_the_browser_s_language_and_colours_are_taken(self):
        with Server() as server:
            driver = browser("zh-CN", dark=True, width=1280, height=860)
            try:
                driver.get(server.url)
                WebDriverWait(driver, 10).until(lambda d: d.find_element(By.ID, "model").text)
                self.assertEqual(driver.find_element(By.ID, "send").text, "发送")
                ground = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
                self.assertEqual(ground, "rgb(20, 24, 24)")
                driver.find_element(By.ID, "input").send_keys("你好，你是谁？", Keys.ENTER)
                WebDriverWait(driver, 30).until(lambda d: d.find_elements(By.CSS_SELECTOR, ".figures"))
                time.sleep(1.2)  # the panel's next look
                if screenshots:
                    driver.save_screenshot(str(screenshots / "dark_chinese.png"))
                driver.set_window_size(420, 900)
                overflow = driver.execute_script(
                    "return document.documentElement.scrollWidth - document.documentElement.clientWidth")
                self.assertLessEqual(overflow, 0, "no sideways scrolling on a narrow screen")
                if screenshots:
                    driver.save_screenshot(str(screenshots / "narrow.png"))
            finally:
                driver.quit()


def main():
    global screenshots
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--screenshots", type=pathlib.Path)
    options, rest = parser.parse_known_args()
    if webdriver is None or not shutil.which("chromium") or not shutil.which("chromedriver"):
        print("skipped: need the packages chromium, chromium-driver and python3-selenium")
        return 77
    screenshots = options.screenshots
    if screenshots:
        screenshots.mkdir(parents=True, exist_ok=True)
    result = unittest.main(module=__name__, argv=[sys.argv[0], *rest], exit=False, verbosity=2).result
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
