// The preview: what the template makes of a chat, and what the tokenizer makes of that.
import { json } from "./api.js";
import { element } from "./dom.js";
import { request_body } from "./chat.js";
import { count, t } from "./words.js";

const $ = (id) => document.getElementById(id);
const kShownTokens = 4000;

// A chat request is an object with messages; everything else is plain text.
function as_chat(source) {
  if (!source.trimStart().startsWith("{")) return null;
  try {
    const body = JSON.parse(source);
    return Array.isArray(body.messages) ? body : null;
  } catch {
    return null;
  }
}

async function show() {
  const chat = as_chat($("source").value);
  $("prompt-error").hidden = true;
  try {
    // From the messages again: as a plain text, what a user wrote could become special tokens.
    const rendered = chat ? (await json("apply-template", chat)).prompt : $("source").value;
    const source = chat ?? { prompt: $("source").value, parse_special: $("special").checked };
    const { tokens, token_strs } = await json("tokenize", { ...source, return_token_strs: true });
    $("rendered").textContent = rendered;
    $("token-count").textContent = t("token_count", { n: count(tokens.length) });
    const shown = token_strs.slice(0, kShownTokens).map((text, i) => {
      const made = element("span", "", text);
      made.title = String(tokens[i]);
      return made;
    });
    if (tokens.length > kShownTokens)
      shown.push(element("span", "faint", t("token_more", { n: count(tokens.length - kShownTokens) })));
    $("tokens").replaceChildren(...shown);
  } catch (error) {
    $("prompt-error").textContent = error.message;
    $("prompt-error").hidden = false;
  }
}

export function setup_prompt() {
  $("render").addEventListener("click", show);
  $("from-chat").addEventListener("click", () => {
    try {
      const { messages, tools, chat_template_kwargs } = request_body();
      if (!messages.some(({ role }) => role !== "system")) messages.push({ role: "user", content: $("input").value });
      $("source").value = JSON.stringify({ messages, tools, chat_template_kwargs }, null, 2);
      show();
    } catch (error) {
      $("prompt-error").textContent = error.message;
      $("prompt-error").hidden = false;
    }
  });
}
