// Any text as config.json, generation_config.json or a quantisation side file: refused, or within its
// documented bounds.
#include <cstdint>
#include <string_view>

#include "core/error.h"
#include "io/generation_config.h"
#include "io/json.h"
#include "io/model_config.h"

namespace {

using namespace longspan;

void check(const io::ModelConfig& config) {
  CHECK(config.num_layers() >= 1 && config.num_layers() <= 1024);
  CHECK(config.num_q_heads % config.num_kv_heads == 0);
  CHECK(config.rotary_dim >= 2 && config.rotary_dim % 2 == 0 && config.rotary_dim <= config.head_dim);
  CHECK(config.q_width() > 0 && config.q_width() <= int64_t{1} << 22);
  CHECK(config.conv_channels() >= 0 && config.conv_channels() <= int64_t{3} << 22);
  CHECK(config.vocab_size * config.hidden_size > 0);
  if (config.is_hybrid()) CHECK(config.linear_num_value_heads % config.linear_num_key_heads == 0);
}

template <class Fn>
void attempt(Fn&& fn) {
  try {
    fn();
  } catch (const Error&) {  // refused
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  attempt([&] { check(io::parse_model_config(text)); });
  attempt([&] { io::parse_generation_config(text); });
  attempt([&] {
    const io::Json json = io::parse_json(text, "fuzz.json");
    io::read_quant_config(io::JsonObject(json, "fuzz.json"));
  });
  return 0;
}
