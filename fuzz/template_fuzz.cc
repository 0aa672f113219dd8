// Any bytes as a chat template: it renders within the limits or ends with an Error.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "text/jinja/template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace longspan;
  using namespace longspan::text::jinja;
  static const auto kContext = nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "system", "content": " S "}, {"role": "user", "content": [{"type": "text", "text": "Hé"}]},
      {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1.5}}}]}],
    "tools": null, "a": 1, "f": 2.5, "s": "text", "l": [3, 1, 2], "d": {"k": [true, null]}, "add_generation_prompt": true})");
  RenderOptions options;
  options.limits = {
      .max_steps = 20'000, .max_built_bytes = 4 << 20, .max_output_bytes = 1 << 20, .max_depth = 200};
  options.now = [] { return std::tm{.tm_mday = 1, .tm_mon = 0, .tm_year = 126}; };
  try {
    const Template source("fuzz", std::string_view(reinterpret_cast<const char*>(data), size));
    const std::string text = source.render(kContext, options);
    CHECK(text.size() <= options.limits.max_output_bytes);
    CHECK(text == source.render(kContext, options));
  } catch (const Error&) {
  }
  return 0;
}
