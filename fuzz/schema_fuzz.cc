// Any JSON as a schema, and as the parameters of a tool: refused, or a grammar from which an answer always
// comes to an end, as JSON.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/error.h"
#include "text/grammar/json_schema.h"
#include "text/grammar/runner.h"
#include "text/grammar/tool_call_grammar.h"

namespace {

using namespace longspan;
using namespace longspan::text;

constexpr size_t kMaxText = 2000;  // bytes of an answer; longer ones are let go

// Chooses bytes by `choices`, the byte that closes something once they are used up. None of an answer's
// places may be without a way on.
std::string answer(const Grammar& grammar, std::string_view choices) {
  GrammarRunner runner(grammar);
  ThreadSet here;
  ThreadSet after;
  runner.enter(grammar.start(), here);
  std::string text;
  while (text.size() < kMaxText) {
    std::string fitting;
    for (int byte = 0; byte < 256; ++byte) {
      runner.step(here, static_cast<uint8_t>(byte), after);
      if (!after.empty()) fitting += static_cast<char>(byte);
    }
    CHECK(!fitting.empty() || here.returned);
    const size_t step = text.size();
    if (here.returned && (fitting.empty() || step >= choices.size())) return text;
    char chosen = fitting[step < choices.size() ? static_cast<uint8_t>(choices[step]) % fitting.size() : 0];
    for (const char closing : {']', '}', '"'})
      if (step >= choices.size() && fitting.find(closing) != std::string::npos) chosen = closing;
    runner.step(here, static_cast<uint8_t>(chosen), after);
    std::swap(here, after);
    text += chosen;
    if (runner.mark() > kMaxText) runner.compact(here);
  }
  return "";
}

}  // namespace

// Bytes: how many choices follow, the choices, the schema.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2 || size > 2048) return 0;
  const size_t num_choices = std::min<size_t>(data[0] % 64, size - 1);
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string_view choices = bytes.substr(1, num_choices);
  constexpr int kMaxDepth = 128;
  const auto check_depth = [](int depth, SchemaJson::parse_event_t, SchemaJson&) {
    if (depth > kMaxDepth) throw Error(ErrorKind::kInvalid, "too deep");
    return true;
  };
  try {
    const SchemaJson schema =
        SchemaJson::parse(bytes.substr(1 + num_choices), check_depth, /*allow_exceptions=*/false);
    if (schema.is_discarded()) return 0;
    const std::string text = answer(json_schema_grammar(schema), choices);
    CHECK(text.empty() || nlohmann::json::accept(text));
    SchemaJson tools = SchemaJson::array();
    tools.push_back({{"type", "function"}, {"function", {{"name", "f"}, {"parameters", schema}}}});
    answer(tool_call_grammar(tools, CallCount::kOneOrMore), choices);
  } catch (const Error&) {
  }
  return 0;
}
