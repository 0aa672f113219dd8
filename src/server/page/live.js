// The live panel: what the engine does now, once a second while somebody looks.
import { call, json } from "./api.js";
import { element } from "./dom.js";
import { set_model } from "./chat.js";
import { bytes, count, seconds, t } from "./words.js";

const $ = (id) => document.getElementById(id);
const kPeriod = 1000;       // milliseconds between two looks
const kRetryPeriod = 5000;  // after one that failed
const kPoints = 120;        // of a curve

const curves = { prefill: [], decode: [] };
let last = null;  // {totals, time} of the look before, for speeds
let shown = null;

function fill(list, rows) {
  list.replaceChildren(...rows.flatMap(([name, value, class_name]) =>
    [element("dt", class_name, name), element("dd", "", String(value))]));
}

function draw(name, value) {
  const curve = curves[name];
  curve.push(value);
  if (curve.length > kPoints) curve.shift();
  const top = Math.max(...curve, 1);
  $(`${name}-line`).firstElementChild.setAttribute("points",
    curve.map((y, i) => `${kPoints - curve.length + i},${(23 - 22 * y / top).toFixed(1)}`).join(" "));
  $(`${name}-rate`).textContent = `${count(Math.round(value))} ${t("rate")}`;
}

function show_speed({ totals }) {
  const time = performance.now();
  if (last && time > last.time) {
    const rate = (name) => Math.max(0, (totals[name] - last.totals[name]) * 1000 / (time - last.time));
    draw("prefill", rate("prefill_tokens"));
    draw("decode", rate("decode_tokens"));
  }
  last = { totals, time };
}

function phase_cell(request) {
  const cell = element("td", "", t(`phase_${request.phase}`));
  if (request.phase !== "decode") {
    const bar = cell.appendChild(element("progress"));
    bar.max = request.prompt_tokens;
    bar.value = request.prefilled_tokens;
    bar.title = `${count(request.prefilled_tokens)} / ${count(request.prompt_tokens)}`;
  }
  return cell;
}

function request_row(request) {
  const row = element("tr");
  const id = element("td", "", request.id);
  id.title = `${request.route} ${request.id}`;
  const cancel = element("button", "small danger", "✕");
  cancel.type = "button";
  cancel.title = t("cancel");
  cancel.setAttribute("aria-label", `${t("cancel")} ${request.id}`);
  cancel.dataset.cancel = request.id;
  const last_cell = element("td");
  last_cell.append(cancel);
  row.append(id, phase_cell(request), element("td", "", seconds(request.age_seconds)),
    element("td", "", count(request.completion_tokens)), last_cell);
  return row;
}

function show_requests({ queue, requests }) {
  $("queue").textContent = t("queue", { running: count(queue.running), waiting: count(queue.waiting) }) +
    (queue.swapped ? `, ${t("swapped", { n: queue.swapped })}` : "");
  $("requests").hidden = requests.length === 0;
  $("no-requests").hidden = requests.length > 0;
  $("requests").tBodies[0].replaceChildren(...requests.map(request_row));
}

function show_cache({ pages, plan, state, totals, prefix_cache }) {
  const used = pages.total - pages.free - pages.cached;
  const [used_bar, cached_bar] = $("pages").children;
  used_bar.style.width = `${100 * used / pages.total}%`;
  cached_bar.style.width = `${100 * pages.cached / pages.total}%`;
  $("page-legend").replaceChildren(...[["used", used], ["cached", pages.cached], ["free", pages.free]].map(
    ([name, value]) => {
      const item = element("span");
      item.append(element("i", `key-${name}`), `${t(name)} ${count(value)}`);
      return item;
    }));
  $("pages").setAttribute("aria-label", $("page-legend").textContent);
  const rows = [[t("most_used"), `${count(pages.max_used)} / ${count(pages.total)}`]];
  if (state.slots) rows.push([t("state_slots"), `${count(state.used)} / ${count(state.slots)}`]);
  else if (state.bytes) rows.push([t("state_pages"), count(state.used)]);
  if (state.bytes) rows.push([t("state_bytes"), bytes(state.bytes)]);
  rows.push([t("preemptions"), count(totals.swap_outs + totals.replays)]);
  if (plan.prefix_caching) {
    const { too_short, no_kv, no_state } = prefix_cache.misses;
    rows.push([t("checkpoints"), count(state.checkpoints)],
      [t("hits"), `${count(prefix_cache.hits)} / ${count(prefix_cache.lookups)}`],
      [t("hit_tokens"), count(prefix_cache.hit_tokens)],
      [t("misses"), `${count(too_short)} / ${count(no_kv)} / ${count(no_state)}`]);
  }
  fill($("cache-figures"), rows);
}

function show_paths({ dispatch, decode_inputs }) {
  const rows = Object.entries(dispatch.hits).map(([path, hits]) => [path, count(hits)]);
  for (const [why, misses] of Object.entries(dispatch.vendor_prefill_misses))
    rows.push([`vendor_prefill ${t("missed", { why })}`, count(misses), "sub"]);
  rows.push([t("decode_inputs"), decode_inputs.reserved ? count(decode_inputs.dispatched) : t("off")]);
  for (const [why, misses] of Object.entries(decode_inputs.misses))
    rows.push([t("missed", { why }), count(misses), "sub"]);
  fill($("paths"), rows);
}

function show_plan({ plan, pages }) {
  fill($("plan"), [
    [t("page_tokens"), `${count(plan.page_tokens)} ${t("tokens_unit")}, ${bytes(plan.attention_page_bytes)}`],
    [t("layout"), plan.layout],
    [t("alignment"), `${plan.alignment} ${t("tokens_unit")}`],
    [t("kv_bytes"), `${count(plan.kv_bytes_per_token)} B`],
    [t("padding"), `${plan.state_padding_percent.toFixed(1)} %`],
    [t("prefix_caching"), t(plan.prefix_caching ? "on" : "off")],
    [t("tokens_fit"), count(pages.cache_tokens)],
  ]);
  $("derivation").replaceChildren(...plan.derivation.map((line) => element("li", "", line)));
}

function show_engine(status) {
  const health = status.draining ? "draining" : status.healthy ? "healthy" : "unhealthy";
  $("health").className = `dot ${{ draining: "busy", healthy: "good", unhealthy: "bad" }[health]}`;
  $("health").title = t(health);
  $("health").setAttribute("aria-label", t(health));
  $("model").textContent = status.model;
  $("machine").textContent = `${status.device} · ${status.dtype}`;
  fill($("engine"), [
    [t("device"), status.device],
    [t("dtype"), status.dtype],
    [t("context"), `${count(status.max_model_len)} ${t("tokens_unit")}`],
    [t("steps"), count(status.totals.steps)],
    [t("step_age"), seconds(status.step_seconds)],
    [t("non_finite"), count(status.totals.non_finite)],
  ]);
}

function show(status) {
  shown = status;
  show_engine(status);
  show_requests(status);
  show_cache(status);
  show_paths(status);
  show_plan(status);
}

function show_trouble(error) {
  $("health").className = "dot bad";
  $("panel-note").textContent = error.status === 401 ? t("need_key") : t("unreachable", { why: error.message });
  $("panel-note").hidden = false;
  last = null;
}

let timer = 0;
let looking = false;  // one look at a time

async function look() {
  clearTimeout(timer);
  if (document.hidden || looking) return;
  looking = true;
  let period = kPeriod;
  try {
    const status = await json("v1/longspan/status");
    $("panel-note").hidden = true;
    set_model(status.model);
    show_speed(status);
    show(status);
  } catch (error) {
    show_trouble(error);
    period = kRetryPeriod;
  }
  looking = false;
  timer = setTimeout(look, period);
}

export const look_now = look;
export const repaint = () => { if (shown) show(shown); };

export function setup_live() {
  document.addEventListener("visibilitychange", look);
  $("requests").addEventListener("click", async (event) => {
    const id = event.target.dataset.cancel;
    if (!id) return;
    event.target.disabled = true;
    try {
      await call(`v1/requests/${encodeURIComponent(id)}/cancel`, {});
    } catch { /* it ended by itself: the next look says so */ }
    look();
  });
  look();
}
