#include "text/tokenizer.h"

#include <algorithm>
#include <map>
#include <unordered_set>

#include "core/error.h"
#include "text/byte_alphabet.h"
#include "text/nfc.h"
#include "text/text_file.h"
#include "text/tokenizer_file.h"
#include "text/utf8.h"

namespace longspan::text {
namespace {

// The added tokens of both files, by id. Where they disagree about an id, the configuration wins.
std::vector<AddedToken> merge_added_tokens(const TokenizerFile& file, const TokenizerConfig& config,
                                           std::string_view config_name) {
  std::map<int32_t, AddedToken> by_id;
  for (const AddedToken& token : file.added_tokens) by_id[token.id] = token;
  for (const AddedToken& token : config.added_tokens) by_id[token.id] = token;

  for (const auto& known : file.vocabulary) {
    const auto it = by_id.find(known.id);
    if (it == by_id.end() || it->second.content == known.bytes) continue;
    if (bytes_of_spelling(it->second.content) == known.bytes) continue;  // spelled as in model.vocab
    fail(ErrorKind::kInvalid, "{}: added_tokens_decoder.{}: got '{}', need '{}' of the vocabulary",
         config_name, known.id, it->second.content, known.bytes);
  }
  std::unordered_map<std::string_view, int32_t> ids;
  std::vector<AddedToken> merged;
  for (const auto& [id, token] : by_id) {
    const auto [other, is_new] = ids.emplace(token.content, id);
    if (!is_new) {
      fail(ErrorKind::kInvalid, "{}: added_tokens_decoder: got '{}' with ids {} and {}, need one id",
           config_name, token.content, other->second, id);
    }
    merged.push_back(token);
  }
  return merged;
}

std::vector<Vocabulary::Entry> vocabulary_entries(const TokenizerFile& file,
                                                  const std::vector<AddedToken>& added_tokens) {
  std::map<int32_t, Vocabulary::Entry> added;
  for (const auto& token : added_tokens)
    added.insert({token.id, {token.id, token.content, /*is_mergeable=*/false}});
  std::vector<Vocabulary::Entry> entries;
  entries.reserve(file.vocabulary.size() + added.size());
  for (const auto& token : file.vocabulary) {
    entries.push_back({token.id, token.bytes, token.is_mergeable});
    added.erase(token.id);
  }
  for (const auto& [id, entry] : added) entries.push_back(entry);
  return entries;
}

std::vector<AddedToken> select(const std::vector<AddedToken>& added_tokens, bool normalized, bool nfc) {
  std::vector<AddedToken> selected;
  std::unordered_set<std::string> contents;
  for (AddedToken token : added_tokens) {
    if (token.normalized != normalized) continue;
    if (normalized && nfc) token.content = to_nfc(token.content);
    if (contents.insert(token.content).second) selected.push_back(std::move(token));
  }
  return selected;
}

// Walks a text from added token to added token.
template <class OnStretch>
void cut(const AddedTokenMatcher& tokens, std::string_view text, SpecialTokens policy,
         std::vector<int32_t>& ids, OnStretch&& on_stretch) {
  size_t stretch_begin = 0;
  while (const auto match = tokens.next(text, stretch_begin, policy)) {
    on_stretch(text.substr(stretch_begin, match->begin - stretch_begin));
    ids.push_back(match->id);
    stretch_begin = match->end;
  }
  on_stretch(text.substr(stretch_begin));
}

}  // namespace

Tokenizer::Tokenizer(const TokenizerFile& file, TokenizerConfig config,
                     const std::vector<AddedToken>& added_tokens)
    : config_(std::move(config)),
      vocabulary_(vocabulary_entries(file, added_tokens)),
      bpe_(vocabulary_, file.merges, file.whole_words),
      nfc_(file.nfc),
      prompt_begin_(file.prompt_begin),
      prompt_end_(file.prompt_end),
      raw_tokens_(select(added_tokens, /*normalized=*/false, nfc_)),
      normalized_tokens_(select(added_tokens, /*normalized=*/true, nfc_)),
      is_special_(static_cast<size_t>(vocabulary_.size())),
      is_added_(static_cast<size_t>(vocabulary_.size())) {
  for (const auto& split : file.splits) splitters_.emplace_back(split.pattern, split.gaps);
  for (const AddedToken& token : added_tokens) {
    id_of_added_token_.emplace(token.content, token.id);
    is_special_[static_cast<size_t>(token.id)] = token.special;
    is_added_[static_cast<size_t>(token.id)] = true;
  }
}

Tokenizer Tokenizer::build(const TokenizerFile& file, TokenizerConfig config, std::string_view config_name) {
  const auto added_tokens = merge_added_tokens(file, config, config_name);
  Tokenizer tokenizer(file, std::move(config), added_tokens);
  const auto id_of = [&](const std::optional<std::string>& token,
                         std::string_view field) -> std::optional<int32_t> {
    if (!token) return std::nullopt;
    const auto id = tokenizer.find(*token);
    if (!id)
      fail(ErrorKind::kInvalid, "{}: {}: got '{}', need a token of the vocabulary", config_name, field,
           *token);
    return id;
  };
  for (const auto* const around : {&file.prompt_begin, &file.prompt_end})
    for (const int32_t id : *around)
      if (tokenizer.token_bytes(id).empty())
        fail(ErrorKind::kInvalid, "tokenizer.json: post_processor: got id {}, need a token of the vocabulary",
             id);
  tokenizer.bos_id_ = id_of(tokenizer.config_.bos_token, "bos_token");
  tokenizer.eos_id_ = id_of(tokenizer.config_.eos_token, "eos_token");
  return tokenizer;
}

Tokenizer Tokenizer::load(const std::filesystem::path& model_dir) {
  const auto path = model_dir / "tokenizer.json";
  const TokenizerFile file = parse_tokenizer_file(read_text_file(path), path.string());
  return build(file, load_tokenizer_config(model_dir), (model_dir / "tokenizer_config.json").string());
}

Tokenizer Tokenizer::parse(std::string_view tokenizer_json, std::string_view tokenizer_config_json) {
  const TokenizerFile file = parse_tokenizer_file(tokenizer_json, "tokenizer.json");
  constexpr std::string_view kConfigName = "tokenizer_config.json";
  const bool has_config = !tokenizer_config_json.empty();
  return build(file,
               has_config ? parse_tokenizer_config(tokenizer_config_json, kConfigName) : TokenizerConfig{},
               kConfigName);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, SpecialTokens policy) const {
  if (text.size() > kMaxTextBytes) {
    fail(ErrorKind::kInvalid, "text: got {} bytes, need at most {}", text.size(), kMaxTextBytes);
  }
  if (find_invalid_utf8(text)) return encode(replace_invalid_utf8(text), policy);
  std::vector<int32_t> ids;
  Bpe::Scratch scratch;
  cut(raw_tokens_, text, policy, ids,
      [&](std::string_view stretch) { encode_raw(stretch, policy, scratch, ids); });
  return ids;
}

std::vector<int32_t> Tokenizer::encode_prompt(std::string_view text) const {
  std::vector<int32_t> ids = encode(text, SpecialTokens::kParse);
  ids.insert(ids.begin(), prompt_begin_.begin(), prompt_begin_.end());
  ids.insert(ids.end(), prompt_end_.begin(), prompt_end_.end());
  return ids;
}

void Tokenizer::encode_raw(std::string_view stretch, SpecialTokens policy, Bpe::Scratch& scratch,
                           std::vector<int32_t>& ids) const {
  std::string normalized;
  if (nfc_ && !is_certainly_nfc(stretch)) {
    normalized = to_nfc(stretch);
    stretch = normalized;
  }
  cut(normalized_tokens_, stretch, policy, ids,
      [&](std::string_view part) { encode_normalized(part, scratch, ids); });
}

void Tokenizer::encode_normalized(std::string_view stretch, Bpe::Scratch& scratch,
                                  std::vector<int32_t>& ids) const {
  std::vector<std::string_view> pieces{stretch};
  for (const RegexSplitter& splitter : splitters_) {
    std::vector<std::string_view> finer;
    for (const std::string_view piece : pieces) {
      const auto parts = splitter.split(piece);
      finer.insert(finer.end(), parts.begin(), parts.end());
    }
    pieces = std::move(finer);
  }
  for (const std::string_view piece : pieces) bpe_.encode(vocabulary_, piece, scratch, ids);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, Decoding decoding) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (decoding == Decoding::kSkipSpecial && is_special(id)) continue;
    bytes += token_bytes(id);
  }
  return find_invalid_utf8(bytes) ? replace_invalid_utf8(bytes) : bytes;
}

std::optional<int32_t> Tokenizer::find(std::string_view token) const {
  const auto it = id_of_added_token_.find(std::string(token));
  return it != id_of_added_token_.end() ? it->second : vocabulary_.find(token);
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocab_size() && is_special_[static_cast<size_t>(id)];
}

bool Tokenizer::is_added(int32_t id) const {
  return id >= 0 && id < vocab_size() && is_added_[static_cast<size_t>(id)];
}

}  // namespace longspan::text
