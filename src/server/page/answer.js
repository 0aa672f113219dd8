// One answer of the model as it grows: its DOM, its text and its figures. Text of a model only ever becomes text
// nodes.
import { element } from "./dom.js";
import { MarkdownText } from "./markdown.js";
import { count, seconds, t } from "./words.js";

// A text that grows often: pieces are gathered and shown once a frame.
class GrowingText {
  constructor(parent, on_grow) {
    this.node = parent.appendChild(element("div", "text")).appendChild(document.createTextNode(""));
    this.on_grow = on_grow;
    this.text = "";
    this.waiting = "";
  }
  add(piece) {
    this.text += piece;
    if (!this.waiting) requestAnimationFrame(() => this.show());
    this.waiting += piece;
  }
  show() {
    this.node.appendData(this.waiting);
    this.waiting = "";
    this.on_grow();
  }
}

function pretty(json_text) {
  try {
    return JSON.stringify(JSON.parse(json_text), null, 2);
  } catch {
    return json_text;
  }
}

export class Answer {
  // `on_grow` runs whenever the answer became taller.
  constructor(list, on_grow) {
    this.box = list.appendChild(element("article", "message assistant"));
    this.status = this.box.appendChild(element("div", "prefill-note", t("sending")));
    this.on_grow = on_grow;
    this.calls = [];
    this.usage = null;
    this.finish_reason = null;
    this.started = performance.now();
    this.first = null;  // time of the first token, and of the latest
    this.last = null;
  }

  take(chunk) {
    if (chunk.id) this.id = chunk.id;
    if (chunk.prompt_progress) this.#progress(chunk.prompt_progress);
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const { reasoning_content, content, tool_calls } = choice.delta;
    if (reasoning_content || content || tool_calls) this.#mark_token();
    if (reasoning_content) this.#reasoning(reasoning_content);
    if (content) this.#content(content);
    for (const one of tool_calls ?? []) this.#call(one);
    if (choice.finish_reason) this.finish_reason = choice.finish_reason;
  }

  // After the last chunk, or with what went wrong.
  end(error) {
    this.#remove_status();
    this.#fold_reasoning();
    if (error) this.box.append(element("p", "error", error.name === "AbortError" ? t("stopped") : error.message));
    if (this.finish_reason === "length") this.box.append(element("p", "faint", t("cut")));
    if (this.usage) this.box.append(this.#figures());
    this.on_grow();
  }

  // As the next request has to repeat it.
  message() {
    const message = { role: "assistant", content: this.content?.text ?? "" };
    if (this.reasoning) message.reasoning_content = this.reasoning.text;
    if (this.calls.length) message.tool_calls = this.calls;
    return message;
  }

  #mark_token() {
    this.last = performance.now();
    if (this.first !== null) return;
    this.first = this.last;
    this.#remove_status();
  }

  #remove_status() {
    this.status.remove();
    this.bar?.remove();
  }

  #progress({ total, processed }) {
    if (!this.bar) this.bar = this.box.appendChild(element("progress"));
    this.bar.max = total;
    this.bar.value = processed;
    this.status.textContent =
      processed === 0 ? t("queued") : t("reading", { done: count(processed), total: count(total) });
    this.on_grow();
  }

  #reasoning(piece) {
    if (!this.reasoning) {
      const details = this.box.appendChild(element("details", "reasoning"));
      details.open = true;
      details.append(element("summary", "", t("reasoning_now")));
      this.reasoning = new GrowingText(details, () => this.on_grow());
      this.reasoning_box = details;
    }
    this.reasoning.add(piece);
    this.reasoning_end = performance.now();
  }

  #fold_reasoning() {
    if (!this.reasoning_box?.open || this.folded) return;
    this.folded = true;  // once: who opens it again wants it open
    this.reasoning_box.open = false;
    this.reasoning_box.querySelector("summary").textContent =
      t("reasoning_took", { s: seconds((this.reasoning_end - this.first) / 1000) });
  }

  #content(piece) {
    this.#fold_reasoning();
    if (!this.content) this.content = new MarkdownText(this.box, () => this.on_grow());
    this.content.add(piece);
  }

  #call({ index, id, function: called }) {
    this.#fold_reasoning();
    if (this.calls[index]) {
      this.calls[index].function.arguments += called.arguments ?? "";
    } else {
      this.calls[index] = { id, type: "function", function: { name: called.name, arguments: called.arguments ?? "" } };
      const box = this.box.appendChild(element("div", "call"));
      box.append(element("span", "faint", `${t("call")} `), element("b", "", called.name), element("pre"));
      box.dataset.call = id;
    }
    const box = this.box.querySelectorAll(".call")[index];
    box.querySelector("pre").textContent = pretty(this.calls[index].function.arguments);
    this.on_grow();
  }

  #figures() {
    const { prompt_tokens, completion_tokens, prompt_tokens_details } = this.usage;
    const cached = prompt_tokens_details?.cached_tokens ?? 0;
    const line = element("div", "figures");
    const add = (value, word) => {
      const item = line.appendChild(element("span"));
      item.append(element("b", "", value), ` ${word}`);
    };
    add(count(prompt_tokens), t("prompt"));
    if (cached) add(count(cached), t("cached_of"));
    add(count(completion_tokens), t("out"));
    if (this.first !== null) {
      add(seconds((this.first - this.started) / 1000), t("ttft"));
      const decode_seconds = (this.last - this.first) / 1000;
      if (completion_tokens > 1 && decode_seconds > 0)
        add(((completion_tokens - 1) / decode_seconds).toFixed(1), t("rate"));
    }
    add(seconds((performance.now() - this.started) / 1000), t("total"));
    return line;
  }
}
