// The conversation: what was said, what is asked next, and the one answer under way.
import { call, events } from "./api.js";
import { Answer } from "./answer.js";
import { copy_button, element } from "./dom.js";
import { count, t } from "./words.js";

const $ = (id) => document.getElementById(id);
const kShownCharacters = 700;   // of a long message; the rest on demand
const kLongPaste = 4000;        // characters; a longer text stays out of the field, whose layout it would slow down
const kFollowPixels = 60;       // nearer to the end than this, the view follows the answer

const history = [];  // messages as the API has them
let pasted = [];     // long texts that go in front of the next message
let edited = null;   // the message of the user that the next one takes the place of
let running = null;  // AbortController of the answer under way
let model = "";

export const set_model = (name) => { model = name; };

export function request_body() {
  const body = { model, messages: [...history] };
  if ($("system").value.trim()) body.messages.unshift({ role: "system", content: $("system").value });
  for (const name of ["temperature", "top_p", "top_k", "max_tokens", "seed"])
    if ($(name).value !== "") body[name] = Number($(name).value);
  body.chat_template_kwargs = { enable_thinking: $("thinking").checked };
  const tools = $("tools").value.trim();
  if (tools) {
    try {
      body.tools = JSON.parse(tools);
    } catch (error) {
      throw new Error(t("bad_tools", { why: error.message }));
    }
    if (!Array.isArray(body.tools)) throw new Error(t("bad_tools", { why: typeof body.tools }));
  }
  return body;
}

function follow() {
  const list = $("messages");
  if (follow.wanted) list.scrollTop = list.scrollHeight;
}
follow.wanted = true;

// Call it before the message goes into the history.
function show_said(text, class_name) {
  const box = $("messages").appendChild(element("article", `message ${class_name}`));
  const shown = box.appendChild(element("div", "text", text));
  if (text.length > 2 * kShownCharacters) {
    shown.textContent = `${text.slice(0, kShownCharacters)}…`;
    const more = box.appendChild(element("button", "small", t("show_all", { n: count(text.length) })));
    more.type = "button";
    more.addEventListener("click", () => {
      shown.textContent = text;
      more.remove();
    });
  }
  if (class_name === "user") box.append(edit_button(box, text));
}

function edit_button(box, text) {
  box.dataset.position = history.length;
  const button = element("button", "small edit");
  button.type = "button";
  button.title = t("edit");
  button.setAttribute("aria-label", t("edit"));
  button.addEventListener("click", () => {
    if (running) return;
    edited = box;
    fill_composer(text);
    $("input").focus();
  });
  return button;
}

function fill_composer(text) {
  pasted = text.length < kLongPaste ? [] : [text];
  $("input").value = text.length < kLongPaste ? text : "";
  show_pasted();
  show_size();
  show_edited();
}

// What the edited message and all behind it become: they go once the new one is sent.
function show_edited() {
  $("edited").hidden = !edited;
  let behind = false;
  for (const box of $("messages").children) {
    behind ||= box === edited;
    box.classList.toggle("stale", behind);
  }
}

function drop_edited() {
  history.length = Number(edited.dataset.position);
  while (edited.nextElementSibling) edited.nextElementSibling.remove();
  edited.remove();
  edited = null;
  show_edited();
}

function set_running(controller) {
  running = controller;
  $("stop").hidden = controller === null;
  $("send").disabled = controller !== null;
}

async function ask() {
  follow.wanted = true;
  const answer = new Answer($("messages"), follow);
  let body = null;
  let failure = null;
  set_running(new AbortController());
  follow();
  try {
    body = { ...request_body(), stream: true, stream_options: { include_usage: true, continuous_usage_stats: true },
      return_progress: true };
    const response = await call("v1/chat/completions", body, running.signal);
    for await (const chunk of events(response)) {
      if (chunk.error) throw new Error(chunk.error.message);
      answer.take(chunk);
    }
  } catch (error) {
    failure = error;
  }
  answer.end(failure);
  if (body) show_raw(answer, body);
  if (answer.first !== null) history.push(answer.message());
  set_running(null);
  if (answer.calls.length && !failure) ask_for_results(answer);
  follow();
}

// A field below each call; once all are filled, the conversation can go on.
function ask_for_results(answer) {
  const fields = answer.calls.map((made, i) => {
    const field = answer.box.querySelectorAll(".call")[i].appendChild(element("textarea", "mono"));
    field.rows = 2;
    field.placeholder = t("tool_result");
    return { id: made.id, field };
  });
  const button = answer.box.appendChild(element("button", "small", t("give_result")));
  button.type = "button";
  button.addEventListener("click", () => {
    if (running) return;
    button.remove();
    for (const { id, field } of fields) {
      history.push({ role: "tool", tool_call_id: id, content: field.value });
      show_said(field.value, "tool");
      field.remove();
    }
    ask();
  });
}

// curl's command line; the key stays out of it.
function as_curl(body) {
  const quoted = JSON.stringify(body).replaceAll("'", `'\\''`);
  const url = new URL("v1/chat/completions", document.baseURI);
  return `curl -N ${url} -H 'Content-Type: application/json' -H "Authorization: Bearer $LONGSPAN_API_KEY" -d '${quoted}'`;
}

function show_raw(answer, body) {
  const details = answer.box.appendChild(element("details", "raw"));
  details.append(element("summary", "", t("raw")));
  const fill = () => {
    if (!details.open || details.querySelector("pre")) return;  // made when first looked at
    details.append(copy_button(t("copy_curl"), t("copied"), t("no_copy"), () => as_curl(body)));
    details.append(element("pre", "", JSON.stringify(body, null, 2)));
    details.append(element("pre", "", JSON.stringify({ id: answer.id, message: answer.message(),
      finish_reason: answer.finish_reason, usage: answer.usage }, null, 2)));
  };
  details.addEventListener("toggle", fill);
}

function show_pasted() {
  $("pasted").replaceChildren(...pasted.map((text, i) => {
    const chip = element("span", "chip", t("pasted", { n: count(text.length) }));
    chip.title = text.slice(0, kShownCharacters);
    const remove = chip.appendChild(element("button", "small", "✕"));
    remove.type = "button";
    remove.setAttribute("aria-label", t("remove"));
    remove.addEventListener("click", () => {
      pasted.splice(i, 1);
      show_pasted();
    });
    return chip;
  }));
}

function take_long_paste(event) {
  const text = event.clipboardData.getData("text/plain");
  if (text.length < kLongPaste) return;
  event.preventDefault();
  pasted.push(text);
  show_pasted();
}

function send() {
  const text = [...pasted, $("input").value].filter((part) => part.trim()).join("\n\n");
  if (running || !text) return;
  if (edited) drop_edited();
  $("welcome").hidden = true;
  $("input").value = "";
  pasted = [];
  show_pasted();
  show_size();
  show_said(text, "user");
  history.push({ role: "user", content: text });
  ask();
}

function show_size() {
  const size = $("input").textLength;
  $("input-size").textContent = size > 200 ? t("characters", { n: count(size) }) : "";
}

export function setup_chat() {
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  $("input").addEventListener("keydown", (event) => {
    // An input method's Enter chooses a word.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  $("input").addEventListener("input", show_size);
  $("input").addEventListener("paste", take_long_paste);
  $("stop").addEventListener("click", () => running?.abort());
  $("keep").addEventListener("click", () => {
    edited = null;
    fill_composer("");
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !event.isComposing) running?.abort(); });
  $("clear").addEventListener("click", () => {
    running?.abort();
    edited = null;
    show_edited();
    history.length = 0;
    $("messages").replaceChildren($("welcome"));
    $("welcome").hidden = false;
    $("input").focus();
  });
  $("messages").addEventListener("scroll", () => {
    const { scrollTop, scrollHeight, clientHeight } = $("messages");
    follow.wanted = scrollHeight - scrollTop - clientHeight < kFollowPixels;
  });
}
