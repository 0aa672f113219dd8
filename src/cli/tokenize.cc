// `longspan tokenize`: text to ids and pieces, ids to text, and chat requests through the template.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/input.h"
#include "core/error.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace longspan::cli {
namespace {

using Json = nlohmann::ordered_json;

struct TokenizeFlags {
  std::string model;
  std::string text;
  std::string chat;
  bool has_text = false;
  bool decode = false;
  bool as_text = false;
  bool json = false;
};

Json parse_chat(const std::string& path) {
  const std::string text = read_text(path);
  Json request = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (request.is_discarded() || !request.is_object())
    fail(ErrorKind::kInvalid, "{}: need a chat request, a JSON object", path);
  if (!request.contains("add_generation_prompt")) request["add_generation_prompt"] = true;
  return request;
}

int decode(const TokenizeFlags& flags, const text::Tokenizer& tokenizer, const std::string& input) {
  const std::vector<int32_t> ids = parse_ids(input, flags.has_text ? "--text" : "standard input");
  const std::string text = tokenizer.decode(ids, text::Decoding::kKeepSpecial);
  if (flags.json)
    std::printf("%s\n", Json{{"ids", ids}, {"text", text}}.dump().c_str());
  else
    std::printf("%s\n", text.c_str());
  return 0;
}

int tokenize(const TokenizeFlags& flags) {
  const text::Tokenizer tokenizer = text::Tokenizer::load(flags.model);
  std::string rendered;
  if (!flags.chat.empty()) rendered = text::ChatTemplate::load(flags.model).render(parse_chat(flags.chat));
  const std::string input = !flags.chat.empty() ? rendered : flags.has_text ? flags.text : read_file("-");
  if (flags.decode) return decode(flags, tokenizer, input);
  text::validate_utf8(input, flags.has_text ? "--text" : "standard input");
  const bool is_prompt = flags.chat.empty() && !flags.as_text;
  const std::vector<int32_t> ids = is_prompt
                                       ? tokenizer.encode_prompt(input)
                                       : tokenizer.encode(input, flags.as_text ? text::SpecialTokens::kAsText
                                                                               : text::SpecialTokens::kParse);
  Json pieces = Json::array();
  for (int32_t id : ids) pieces.push_back(text::replace_invalid_utf8(tokenizer.token_bytes(id)));
  if (flags.json) {
    Json out = {{"ids", ids}, {"pieces", pieces}};
    if (!flags.chat.empty()) out["text"] = rendered;
    std::printf("%s\n", out.dump().c_str());
    return 0;
  }
  if (!flags.chat.empty()) std::printf("%s\n----\n", rendered.c_str());
  for (size_t i = 0; i < ids.size(); ++i) std::printf("%6d  %s\n", ids[i], pieces[i].dump().c_str());
  std::printf("%zu tokens\n", ids.size());
  return 0;
}

}  // namespace

void add_tokenize(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* command = app.add_subcommand("tokenize", "Text to token ids and pieces, and back");
  command->add_option("--model", flags->model, "Model directory")->required();
  CLI::Option* text = command->add_option("--text", flags->text, "The text; default: standard input");
  CLI::Option* chat = command->add_option("--chat", flags->chat,
                                          "Render a chat request (JSON file) through the template first");
  CLI::Option* decode = command->add_flag("--decode", flags->decode, "The way back: ids to text");
  chat->excludes(text)->excludes(decode);
  command->add_flag("--special-as-text", flags->as_text, "Special tokens in the text stay plain text");
  command->add_flag("--json", flags->json, "Print {ids, pieces}");
  command->callback([flags, text, &exit_code] {
    flags->has_text = text->count() > 0;
    exit_code = tokenize(*flags);
  });
}

}  // namespace longspan::cli
