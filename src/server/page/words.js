// The words of the page in its two languages, and the switch between them.

const kWords = {
  en: {
    chat: "Chat", prompt_tab: "Template & tokens", key: "API key", send: "Send", stop: "Stop", clear: "New chat",
    welcome: "Ask something. Enter sends, Shift+Enter makes a new line, Esc stops an answer.",
    say: "Message", settings: "Settings", temperature: "Temperature", top_p: "Top p", top_k: "Top k",
    max_tokens: "Max tokens", seed: "Seed", default: "default", no_limit: "no limit", random: "random",
    thinking: "Thinking", system: "System message", tools: "Tools (JSON array)",
    characters: "{n} characters", show_all: "Show all {n} characters", pasted: "Pasted text, {n} characters", remove: "Remove",
    sending: "Sending", queued: "Waiting", reading: "Reading the prompt: {done} of {total} tokens", reasoning: "Reasoning",
    reasoning_now: "Reasoning…", reasoning_took: "Reasoning, {s}", call: "Tool call",
    tool_result: "Result of the call", give_result: "Send results", bad_tools: "Tools: not a JSON array ({why})",
    prompt: "prompt", cached_of: "cached", out: "answer", ttft: "first token", rate: "tokens/s", tokens_unit: "tokens",
    total: "total", stopped: "stopped", cut: "cut at the token limit", raw: "Request and response", copy_curl: "Copy as curl",
    copy: "Copy", edit: "Edit and send again", editing: "The message above and all behind it will be replaced.", keep: "Keep them",
    copied: "Copied", no_copy: "This browser does not let the page copy",
    requests: "Requests", request: "id", phase: "phase", age: "age", answer: "answer", cancel: "Cancel",
    no_requests: "Nothing runs.", queue: "{running} running, {waiting} waiting", swapped: "{n} swapped out",
    phase_queued: "waiting", phase_prefill: "prefill", phase_decode: "decode",
    speed: "Speed", prefill: "Prefill", decode: "Decode", cache: "Cache pages", used: "used", cached: "cached",
    free: "free", most_used: "Most used so far", state_slots: "State slots", state_pages: "State pages in use",
    state_bytes: "State of a sequence and layer", checkpoints: "State checkpoints", hits: "Prefix hits", hit_tokens: "Tokens from the cache",
    misses: "Misses: too short / no KV / no state", preemptions: "Preemptions", off: "off",
    paths: "Attention paths", missed: "missed: {why}", decode_inputs: "Steady decode inputs", plan: "Page plan", page_tokens: "Page", layout: "Layout",
    alignment: "Alignment", kv_bytes: "KV per token and layer", padding: "State padding",
    tokens_fit: "Tokens that fit", prefix_caching: "Prefix caching", derivation: "Derivation", engine: "Engine",
    device: "Device", dtype: "Dtype", context: "Context", steps: "Steps", step_age: "Step under way", non_finite: "NaN answers",
    on: "on", healthy: "The engine works", unhealthy: "The engine does not work", draining: "The server is shutting down",
    need_key: "This server needs its API key: type it above.", unreachable: "The server does not answer: {why}",
    from_chat: "Take the chat", render: "Show", parse_special: "Special tokens in plain text count",
    source: "A text, or a chat request in JSON: {\"messages\": [...]}", rendered: "The prompt", tokens: "Tokens",
    token_count: "{n} tokens", token_more: "… {n} more",
  },
  zh: {
    chat: "对话", prompt_tab: "模板与词元", key: "API 密钥", send: "发送", stop: "停止", clear: "新对话",
    welcome: "请输入问题。Enter 发送，Shift+Enter 换行，Esc 停止回答。",
    say: "消息", settings: "设置", temperature: "温度", top_p: "Top p", top_k: "Top k",
    max_tokens: "最多词元", seed: "随机种子", default: "默认", no_limit: "不限", random: "随机",
    thinking: "思考", system: "系统消息", tools: "工具（JSON 数组）",
    characters: "{n} 个字符", show_all: "显示全部 {n} 个字符", pasted: "粘贴的文本，{n} 个字符", remove: "移除",
    sending: "发送中", queued: "排队中", reading: "正在读取提示词：{done} / {total} 词元", reasoning: "思考",
    reasoning_now: "思考中…", reasoning_took: "思考，{s}", call: "工具调用",
    tool_result: "调用结果", give_result: "发送结果", bad_tools: "工具不是 JSON 数组（{why}）",
    prompt: "提示词", cached_of: "来自缓存", out: "回答", ttft: "首词元", rate: "词元/秒", tokens_unit: "词元",
    total: "总计", stopped: "已停止", cut: "达到词元上限", raw: "请求与响应", copy_curl: "复制为 curl",
    copy: "复制", edit: "编辑并重新发送", editing: "上面的消息及其后的内容将被替换。", keep: "保留",
    copied: "已复制", no_copy: "浏览器不允许本页复制",
    requests: "请求", request: "编号", phase: "阶段", age: "时长", answer: "回答", cancel: "取消",
    no_requests: "没有正在运行的请求。", queue: "运行 {running}，等待 {waiting}", swapped: "换出 {n}",
    phase_queued: "等待", phase_prefill: "预填充", phase_decode: "解码",
    speed: "速度", prefill: "预填充", decode: "解码", cache: "缓存页", used: "使用", cached: "缓存",
    free: "空闲", most_used: "最高用量", state_slots: "状态槽", state_pages: "使用中的状态页",
    state_bytes: "每序列每层状态", checkpoints: "状态检查点", hits: "前缀命中", hit_tokens: "来自缓存的词元",
    misses: "未命中：过短 / 无 KV / 无状态", preemptions: "抢占", off: "关",
    paths: "注意力路径", missed: "未走：{why}", decode_inputs: "稳态解码输入", plan: "页面规划", page_tokens: "页", layout: "布局",
    alignment: "对齐", kv_bytes: "每层每词元 KV", padding: "状态填充",
    tokens_fit: "可容纳词元", prefix_caching: "前缀缓存", derivation: "推导", engine: "引擎",
    device: "设备", dtype: "数据类型", context: "上下文", steps: "步数", step_age: "当前步时长", non_finite: "NaN 回答",
    on: "开", healthy: "引擎正常", unhealthy: "引擎异常", draining: "服务器正在关闭",
    need_key: "此服务器需要 API 密钥：请在上方输入。", unreachable: "服务器无响应：{why}",
    from_chat: "取自对话", render: "显示", parse_special: "纯文本中的特殊词元生效",
    source: "一段文本，或 JSON 对话请求：{\"messages\": [...]}", rendered: "提示词", tokens: "词元",
    token_count: "{n} 个词元", token_more: "… 另有 {n} 个",
  },
};

const kStored = "longspan-language";
let language = sessionStorage.getItem(kStored) ?? (navigator.language.startsWith("zh") ? "zh" : "en");

export function t(word, values = {}) {
  return kWords[language][word].replace(/\{(\w+)\}/g, (hole, name) => values[name] ?? hole);
}

// Fills every element that names a word, now and after a switch; `on_change` repaints the rest.
export function setup_words(on_change) {
  const select = document.getElementById("language");
  const fill = () => {
    document.documentElement.lang = language;
    for (const element of document.querySelectorAll("[data-t]")) element.textContent = t(element.dataset.t);
    for (const element of document.querySelectorAll("[data-t-placeholder]"))
      element.placeholder = t(element.dataset.tPlaceholder);
  };
  select.value = language;
  select.addEventListener("change", () => {
    language = select.value;
    sessionStorage.setItem(kStored, language);
    fill();
    on_change();
  });
  fill();
}

export const count = (n) => Number(n).toLocaleString(language);

export function seconds(s) {
  if (s < 10) return `${s.toFixed(2)} s`;
  if (s < 120) return `${s.toFixed(1)} s`;
  return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
}

export function bytes(n) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (n < 1024) return `${n < 10 && unit !== "B" ? n.toFixed(1) : Math.round(n)} ${unit}`;
    n /= 1024;
  }
  return `${n.toFixed(1)} TiB`;
}
