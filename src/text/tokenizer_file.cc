#include "text/tokenizer_file.h"

#include <unordered_map>
#include <unordered_set>

#include "core/error.h"
#include "text/added_token_field.h"
#include "text/byte_alphabet.h"
#include "text/json_field.h"
#include "text/utf8.h"
#include "text/vocabulary.h"

namespace longspan::text {
namespace {

// GPT-2's pattern, which a ByteLevel pre-tokenizer applies when `use_regex` is true.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

const std::string& type_of(const JsonField& component) { return component.required("type").string(); }

// The members of a Sequence, or the component itself. Sequences do not nest.
std::vector<JsonField> sequence(const JsonField& component, const char* members) {
  if (type_of(component) != "Sequence") return {component};
  std::vector<JsonField> parts;
  const JsonField list = component.required(members);
  for (size_t i = 0; i < list.array().size(); ++i) parts.push_back(list.element(i));
  return parts;
}

bool read_normalizer(const JsonField& document) {
  const auto normalizer = document.optional("normalizer");
  if (!normalizer) return false;
  bool nfc = false;
  for (const JsonField& part : sequence(*normalizer, "normalizers")) {
    if (type_of(part) != "NFC") part.required("type").unsupported("NFC, a Sequence of it, or null");
    nfc = true;
  }
  return nfc;
}

TokenizerFile::Split read_split(const JsonField& part) {
  const JsonField pattern = part.required("pattern");
  const auto regex = pattern.optional("Regex");
  if (!regex) pattern.unsupported("a Regex");
  const JsonField behavior = part.required("behavior");
  const bool is_inverted = part.flag("invert", false);
  // Isolated keeps matches and gaps alike; Removed with invert keeps the matches only.
  if (behavior.string() == "Isolated") return {regex->string(), Gaps::kKeep};
  if (behavior.string() == "Removed" && is_inverted) return {regex->string(), Gaps::kDrop};
  behavior.unsupported("Isolated, or Removed with invert");
}

std::vector<TokenizerFile::Split> read_pre_tokenizer(const JsonField& document) {
  std::vector<TokenizerFile::Split> splits;
  const JsonField pre_tokenizer = document.required("pre_tokenizer");
  bool is_byte_level = false;
  for (const JsonField& part : sequence(pre_tokenizer, "pretokenizers")) {
    // Behind ByteLevel the text is spelled in the byte alphabet: a pattern would mean something else.
    if (is_byte_level) part.unsupported("ByteLevel as the last pre-tokenizer");
    if (type_of(part) == "Split") {
      splits.push_back(read_split(part));
    } else if (type_of(part) == "ByteLevel") {
      is_byte_level = true;
      if (part.flag("add_prefix_space", true)) part.required("add_prefix_space").unsupported("false");
      if (part.flag("use_regex", true)) splits.push_back({std::string(kByteLevelPattern), Gaps::kKeep});
    } else {
      part.required("type").unsupported("Split or ByteLevel");
    }
  }
  if (!is_byte_level) pre_tokenizer.unsupported("a ByteLevel pre-tokenizer");
  return splits;
}

struct PromptTokens {
  std::vector<int32_t> begin, end;
};

// `single` of a TemplateProcessing: special tokens, of which `special_tokens` has the ids, around one
// sequence.
PromptTokens read_template(const JsonField& processor) {
  PromptTokens tokens;
  const JsonField single = processor.required("single");
  bool behind = false;
  for (size_t i = 0; i < single.array().size(); ++i) {
    const JsonField part = single.element(i);
    if (part.optional("Sequence")) {
      if (behind) part.unsupported("one Sequence");
      behind = true;
      continue;
    }
    const std::string& name = part.required("SpecialToken").required("id").string();
    const JsonField ids = processor.required("special_tokens").required(name.c_str()).required("ids");
    for (size_t k = 0; k < ids.array().size(); ++k)
      (behind ? tokens.end : tokens.begin).push_back(ids.element(k).id());
  }
  if (!behind) single.unsupported("one Sequence");
  return tokens;
}

PromptTokens read_post_processor(const JsonField& document) {
  PromptTokens tokens;
  const auto post_processor = document.optional("post_processor");
  if (!post_processor) return tokens;
  bool has_template = false;
  for (const JsonField& part : sequence(*post_processor, "processors")) {
    if (type_of(part) == "ByteLevel") continue;
    if (type_of(part) != "TemplateProcessing" || has_template)
      part.required("type").unsupported("ByteLevel, one TemplateProcessing, a Sequence of them, or null");
    has_template = true;
    tokens = read_template(part);
  }
  return tokens;
}

void check_decoder(const JsonField& document) {
  const JsonField decoder = document.required("decoder");
  const auto parts = sequence(decoder, "decoders");
  if (parts.size() != 1) decoder.unsupported("one ByteLevel decoder");
  if (type_of(parts[0]) != "ByteLevel") parts[0].required("type").unsupported("ByteLevel");
}

void check_model_options(const JsonField& model) {
  if (type_of(model) != "BPE") model.required("type").unsupported("BPE");
  if (const auto dropout = model.optional("dropout"); dropout && dropout->value() != 0) {
    dropout->unsupported("0 or null");
  }
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto field = model.optional(affix);
    if (field && !field->string().empty()) field->unsupported("an empty affix or null");
  }
}

// `model.vocab` both ways. Borrows the spellings from the document.
struct Spellings {
  std::unordered_map<std::string_view, int32_t> id_of;
  std::unordered_map<int32_t, std::string_view> of_id;
};

Spellings read_vocabulary(const JsonField& vocabulary) {
  Spellings spellings;
  spellings.id_of.reserve(vocabulary.object().size());
  spellings.of_id.reserve(vocabulary.object().size());
  for (const auto& [spelling, value] : vocabulary.object().items()) {
    if (!is_token_id(value)) vocabulary.required(spelling.c_str()).id();  // throws
    const auto id = value.get<int32_t>();
    const auto [it, is_new] = spellings.of_id.emplace(id, spelling);
    if (!is_new) {
      vocabulary.required(spelling.c_str()).invalid(fmt::format("an id that '{}' does not have", it->second));
    }
    spellings.id_of.emplace(spelling, id);
  }
  return spellings;
}

// "left right" or ["left", "right"].
std::pair<std::string_view, std::string_view> read_pair(const JsonField& merges, size_t idx) {
  const nlohmann::json& entry = merges.value()[idx];
  if (entry.is_string()) {
    const std::string_view text = entry.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != text.npos && text.find(' ', space + 1) == text.npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
    return {entry[0].get_ref<const std::string&>(), entry[1].get_ref<const std::string&>()};
  }
  merges.element(idx).invalid("\"left right\" or [\"left\", \"right\"]");
}

std::vector<Merge> read_merges(const JsonField& merges, const Spellings& spellings) {
  std::vector<Merge> result;
  result.reserve(merges.array().size());
  std::string merged;
  for (size_t i = 0; i < merges.array().size(); ++i) {
    const auto [left, right] = read_pair(merges, i);
    merged.assign(left).append(right);
    const auto id_of = [&](std::string_view spelling) {
      const auto it = spellings.id_of.find(spelling);
      if (it == spellings.id_of.end())
        merges.element(i).invalid(fmt::format("tokens of the vocabulary, which lacks '{}'", spelling));
      return it->second;
    };
    result.push_back({id_of(left), id_of(right), id_of(merged)});
  }
  return result;
}

std::vector<TokenizerFile::Token> tokens_with_bytes(const JsonField& vocabulary, const Spellings& spellings) {
  std::vector<TokenizerFile::Token> tokens;
  tokens.reserve(spellings.of_id.size());
  std::vector<bool> has_byte(256);
  for (const auto& [id, spelling] : spellings.of_id) {
    auto bytes = bytes_of_spelling(spelling);
    const bool is_mergeable = bytes.has_value();
    if (bytes && bytes->size() == 1) has_byte[static_cast<uint8_t>((*bytes)[0])] = true;
    tokens.push_back({id, is_mergeable ? std::move(*bytes) : std::string(spelling), is_mergeable});
  }
  for (size_t byte = 0; byte < has_byte.size(); ++byte) {
    if (!has_byte[byte]) vocabulary.invalid(fmt::format("a token for every byte; 0x{:02x} has none", byte));
  }
  return tokens;
}

// Takes the spellings by value: added tokens join them, so that no id or content comes twice.
std::vector<AddedToken> read_added_tokens(const JsonField& document, Spellings spellings) {
  std::vector<AddedToken> tokens;
  const auto list = document.optional("added_tokens");
  if (!list) return tokens;
  std::unordered_set<std::string_view> contents;
  for (size_t i = 0; i < list->array().size(); ++i) {
    const JsonField entry = list->element(i);
    const JsonField content = entry.required("content");
    const JsonField id = entry.required("id");
    if (!contents.insert(content.string()).second) content.invalid("a content that no other has");
    const auto known_id = spellings.id_of.find(content.string());
    if (known_id != spellings.id_of.end() && known_id->second != id.id()) {
      id.invalid(fmt::format("{}, the id of this content in model.vocab", known_id->second));
    }
    const auto [known, is_new] = spellings.of_id.emplace(id.id(), content.string());
    if (!is_new && known->second != content.string()) {
      id.invalid(fmt::format("an id that '{}' does not have", known->second));
    }
    tokens.push_back(read_added_token(entry, id.id()));
  }
  return tokens;
}

}  // namespace

TokenizerFile parse_tokenizer_file(std::string_view json, std::string_view file_name) {
  const nlohmann::json root = parse_json(json, file_name);
  const JsonField document(root, file_name);
  const JsonField model = document.required("model");
  check_model_options(model);
  PromptTokens around = read_post_processor(document);
  check_decoder(document);
  const JsonField vocabulary = model.required("vocab");
  Spellings spellings = read_vocabulary(vocabulary);
  return {
      .nfc = read_normalizer(document),
      .splits = read_pre_tokenizer(document),
      .vocabulary = tokens_with_bytes(vocabulary, spellings),
      .merges = read_merges(model.required("merges"), spellings),
      .whole_words =
          model.flag("ignore_merges", false) ? Bpe::WholeWords::kAlways : Bpe::WholeWords::kIfMerged,
      .prompt_begin = std::move(around.begin),
      .prompt_end = std::move(around.end),
      .added_tokens = read_added_tokens(document, std::move(spellings)),
  };
}

}  // namespace longspan::text
