// The whole engine on a card, a model's shape with random weights, one request at a time:
//   longspan_device_engine_bench CONFIG_DIR [prompt tokens, comma separated] [decoded tokens] [device index]
//   [words, in any order: unified, fp8, page16, general, drawn, seqs=N, chunk=N]
// Time to the first token and between tokens; first a request of the same shape to warm up. Decode is set
// beside the bytes that a token must read: weights, K, V and states. unified: no vendor_prefill, same pages.
// fp8: K and V are kept as e4m3. page16: pages of whole 16 tokens (784 for the 27B, which vendor_prefill does
// not take). general: no inputs of a step are prepared on the device. drawn: tokens are drawn (temperature
// 0.7, top_k 20, top_p 0.95). seqs=N: as well the tokens a second of N requests that decode side by side.
// chunk=N: prompt tokens of a step (4096).
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "core/units.h"
#include "engine/engine.h"
#include "timed_request.h"

namespace longspan::bench {
namespace {

double token_bytes(const engine::EngineInfo& info, int64_t context) {
  const io::ModelConfig& config = info.config;
  const auto element = static_cast<double>(dtype_size(info.dtype));
  double bytes = static_cast<double>(info.weight_bytes);
  if (!config.tie_word_embeddings)
    bytes -= static_cast<double>(config.vocab_size * config.hidden_size) * element;
  const auto kv_element = static_cast<double>(dtype_size(info.page_plan.kv_dtype));
  const auto num_full = static_cast<double>(config.num_layers_of(io::LayerKind::kFullAttention));
  bytes += num_full * 2 * static_cast<double>(config.kv_width() * context) * kv_element;
  const double state = static_cast<double>(config.linear_num_value_heads * config.linear_key_head_dim *
                                           config.linear_value_head_dim) *
                       sizeof(float);
  return bytes + (static_cast<double>(config.num_layers()) - num_full) * 2 * state;
}

int main_of(int argc, char** argv) {
  std::vector<int64_t> prompts;
  for (char* at = argc > 2 ? argv[2] : const_cast<char*>("4096,8192"); *at != '\0';) {
    prompts.push_back(std::strtoll(at, &at, 10));
    if (*at == ',') ++at;
  }
  const int64_t num_new = argc > 3 ? std::atoll(argv[3]) : 64;
  const int64_t longest = *std::max_element(prompts.begin(), prompts.end());
  const auto has_word = [&](std::string_view word) {
    return std::find(argv + std::min(argc, 5), argv + argc, word) != argv + argc;
  };
  const auto number_of = [&](std::string_view word, int64_t otherwise) {  // word: "name="
    for (int i = 5; i < argc; ++i)
      if (std::string_view(argv[i]).starts_with(word)) return std::max(1L, std::atol(argv[i] + word.size()));
    return otherwise;
  };
  const auto num_seqs = static_cast<int32_t>(number_of("seqs=", 1));
  const int64_t chunk = number_of("chunk=", 4096);
  const engine::SamplingParams sampling =
      has_word("drawn") ? engine::SamplingParams{.temperature = 0.7, .top_k = 20, .top_p = 0.95}
                        : engine::SamplingParams{};
  engine::Engine engine({.model = argv[1],
                         .random_seed = 1,
                         .device = engine::DeviceKind::kDevice,
                         .device_index = argc > 4 ? std::atoi(argv[4]) : 0,
                         // Of several, each keeps one page in hand.
                         .max_model_len = longest + num_new + 64 + (num_seqs > 1 ? 1024 : 0),
                         .max_num_seqs = num_seqs,
                         .max_num_batched_tokens = chunk,
                         .kv_dtype = has_word("fp8") ? std::optional(DType::kF8E4M3) : std::nullopt,
                         .swap_bytes = 0,
                         .pages = {.alignment = has_word("page16") ? 16 : 64},
                         .dispatch = {.enable_vendor_prefill = !has_word("unified"),
                                      .vendor_prefill_max_q = chunk,
                                      .steady_decode_inputs = !has_word("general")}});
  const engine::EngineInfo& info = engine.info();
  fmt::print("{}\n{} weights {} in {}, K and V {}, page {} tokens\n", info.device, dtype_name(info.dtype),
             format_bytes(info.weight_bytes), format_seconds(info.load_seconds),
             dtype_name(info.page_plan.kv_dtype), info.page_plan.page_tokens);
  for (const int64_t num_prompt : prompts) {
    time_request(engine, num_prompt, 4, sampling);
    const int64_t replayed = engine.status().replays.num_replayed;
    const TimedRequest timed = time_request(engine, num_prompt, num_new, sampling);
    const double bytes = token_bytes(info, num_prompt);
    fmt::print(
        "prompt {:>7}: first token {:>8.1f} ms ({:.0f} tokens/s), then {:.3f} ms a token, {:.2f} GB each: "
        "{:.0f} GB/s; {} steps replayed\n",
        num_prompt, timed.ttft * 1e3, static_cast<double>(num_prompt) / timed.ttft, timed.decode_token * 1e3,
        bytes * 1e-9, bytes * 1e-9 / timed.decode_token, engine.status().replays.num_replayed - replayed);
    if (num_seqs > 1)
      fmt::print("prompt {:>7}: {} side by side, {:.1f} tokens/s\n", num_prompt, num_seqs,
                 decode_rate(engine, num_seqs, num_prompt, num_new));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace longspan::bench

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr,
                 "longspan_device_engine_bench CONFIG_DIR [prompt tokens] [decoded tokens] [device] "
                 "[unified] [fp8] [page16] [general] [drawn] [seqs=N] [chunk=N]\n");
    return 2;
  }
  try {
    return longspan::bench::main_of(argc, argv);
  } catch (const longspan::Error& error) {
    std::fprintf(stderr, "longspan_device_engine_bench: %s\n", error.what());
    return longspan::exit_code(error.kind);
  }
}
