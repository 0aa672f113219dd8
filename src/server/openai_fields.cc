#include "server/openai_fields.h"

#include <charconv>
#include <limits>

#include "text/utf8.h"

namespace longspan::server {
namespace {

constexpr int64_t kMaxTokens = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxTokenId = std::numeric_limits<int32_t>::max();
constexpr size_t kMaxStops = 64;
constexpr size_t kMaxStopBytes = 4096;
constexpr double kTinyMass = 1e-12;  // top_p must be above 0

std::vector<std::string> parse_stop(const JsonFields& fields) {
  const Json* stop = fields.find("stop");
  if (!stop) return {};
  std::vector<std::string> stops;
  const auto add = [&](const Json& one) {
    if (!one.is_string()) fail_field("stop", "got {}, need a string or an array of strings", describe(one));
    if (one.get_ref<const std::string&>().size() > kMaxStopBytes)
      fail_field("stop", "got a string of more than {} bytes", kMaxStopBytes);
    stops.push_back(one.get<std::string>());
  };
  if (stop->is_array()) {
    if (stop->size() > kMaxStops)
      fail_field("stop", "got {} strings, need at most {}", stop->size(), kMaxStops);
    for (const Json& one : *stop) add(one);
  } else {
    add(*stop);
  }
  return stops;
}

std::vector<int32_t> parse_token_ids(const JsonFields& fields, const char* name) {
  std::vector<int32_t> ids;
  if (const Json* array = fields.array(name))
    for (const Json& one : *array) ids.push_back(static_cast<int32_t>(to_integer(one, name, 0, kMaxTokenId)));
  return ids;
}

std::vector<std::pair<int32_t, float>> parse_logit_bias(const JsonFields& fields) {
  std::vector<std::pair<int32_t, float>> biases;
  const Json* object = fields.object("logit_bias");
  if (!object) return biases;
  for (const auto& [key, value] : object->items()) {
    int32_t id = 0;
    const auto [rest, status] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (status != std::errc() || rest != key.data() + key.size())
      fail_field("logit_bias", "got the key '{}', need a token id", key.substr(0, 40));
    const double bias = value.is_number() ? value.get<double>() : 1e9;
    if (!(bias >= -100 && bias <= 100))
      fail_field("logit_bias", "got {} for token {}, need a number from -100 to 100", describe(value), id);
    biases.emplace_back(id, static_cast<float>(bias));
  }
  return biases;
}

// Fields with a meaning that this server does not give them: silence would be a wrong answer.
void refuse_unsupported(const JsonFields& fields) {
  for (const char* name : {"grammar", "json_schema", "ebnf"}) fields.refuse(name, "use response_format");
  for (const char* name :
       {"allowed_token_ids", "bad_words", "stop_regex", "logits_processors", "lora_path", "prompt_logprobs",
        "truncate_prompt_tokens", "thinking_token_budget", "audio", "input_ids", "logprob_token_ids"})
    fields.refuse(name, "this server has no such control");
  if (fields.boolean("use_beam_search").value_or(false)) fields.refuse("use_beam_search", "sampling only");
  const int64_t n = fields.integer("n", 1, kMaxTokenId).value_or(1);
  if (const auto best_of = fields.integer("best_of", 0, kMaxTokenId); best_of && *best_of != n)
    fail_field("best_of", "got {}, need the value of n ({})", *best_of, n);
}

engine::SamplingParams parse_sampling(const JsonFields& fields, const RequestDefaults& defaults) {
  engine::SamplingParams params = defaults.sampling;
  if (const auto v = fields.number("temperature", 0, 100)) params.temperature = *v;
  if (const auto v = fields.number("top_p", kTinyMass, 1)) params.top_p = *v;
  if (const auto v = fields.integer("top_k", -1, 1'000'000'000))
    params.top_k = static_cast<int32_t>(std::max<int64_t>(*v, 0));  // -1 is another way to say: off
  if (const auto v = fields.number("min_p", 0, 1)) params.min_p = *v;
  if (const auto v = fields.number("repetition_penalty", 1e-3, 1e3)) params.repetition_penalty = *v;
  if (const auto v = fields.number("presence_penalty", -2, 2)) params.presence_penalty = *v;
  if (const auto v = fields.number("frequency_penalty", -2, 2)) params.frequency_penalty = *v;
  if (const auto v = fields.integer("seed", INT64_MIN, INT64_MAX)) params.seed = static_cast<uint64_t>(*v);
  if (const auto v = fields.integer("min_tokens", 0, 1'000'000'000)) params.min_tokens = *v;
  params.logit_bias = parse_logit_bias(fields);
  return params;
}

}  // namespace

GenerationRequest parse_generation(const JsonFields& fields, const RequestDefaults& defaults) {
  refuse_unsupported(fields);
  GenerationRequest request;
  request.num_choices = static_cast<int32_t>(fields.integer("n", 1, defaults.max_choices).value_or(1));
  // -1 is what some clients send for "no limit".
  auto max_tokens = fields.integer("max_completion_tokens", -1, kMaxTokens);
  if (!max_tokens) max_tokens = fields.integer("max_tokens", -1, kMaxTokens);
  request.max_tokens = std::max<int64_t>(max_tokens.value_or(0), 0);
  const bool prompt_only = fields.boolean("echo").value_or(false);
  if (max_tokens == 0 && !prompt_only) fail_field("max_tokens", "got 0, need at least 1");
  request.sampling = parse_sampling(fields, defaults);
  request.stop_token_ids = parse_token_ids(fields, "stop_token_ids");
  request.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  request.priority = static_cast<int32_t>(fields.integer("priority", INT32_MIN, INT32_MAX).value_or(0));
  request.cache_salt = fields.text("cache_salt").value_or("");
  request.answer.stop = parse_stop(fields);
  request.answer.keep_stop = fields.boolean("include_stop_str_in_output").value_or(false);
  if (!fields.boolean("skip_special_tokens").value_or(true))
    request.answer.decoding = text::Decoding::kKeepSpecial;
  return request;
}

StreamOptions parse_stream_options(const JsonFields& fields, const RequestDefaults& defaults) {
  StreamOptions options{.stream = fields.boolean("stream").value_or(false),
                        .progress = fields.boolean("return_progress").value_or(false),
                        .keepalive_seconds = defaults.keepalive_seconds};
  if (const Json* json = fields.object("stream_options")) {
    const JsonFields inner(*json, "stream_options.");
    options.include_usage = inner.boolean("include_usage").value_or(false);
    options.continuous_usage = inner.boolean("continuous_usage_stats").value_or(false);
  }
  // -1 or 0 switches the comments off, for clients that cannot read them.
  if (const auto seconds = fields.number("sse_ping_interval", -1, 86'400))
    options.keepalive_seconds = std::max(*seconds, 0.0);
  return options;
}

const char* finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kToolCalls:
      return "tool_calls";
    case FinishReason::kCancelled:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return "stop";
}

Json stop_reason(const Finish& finish) {
  if (finish.stop_string) return *finish.stop_string;
  if (finish.stop_token >= 0) return finish.stop_token;
  return nullptr;
}

Json usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}}};
}

Json token_json(const text::Tokenizer& tokenizer, int32_t token, float logprob) {
  const std::string_view bytes = tokenizer.token_bytes(token);
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<uint8_t>(c));
  return {{"token", text::replace_invalid_utf8(bytes)}, {"logprob", logprob}, {"bytes", std::move(list)}};
}

}  // namespace longspan::server
