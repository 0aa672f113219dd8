// Tokenizer: text to token ids and back, as tokenizer.json says.
//
// encode: invalid UTF-8 becomes U+FFFD; added tokens are cut out of the raw text; what lies between them is
// brought to NFC, each stretch by itself; normalised added tokens are cut out; the pre-tokenizer's patterns
// cut pieces; each piece is merged from bytes. Time is O(n log n) in the size of the text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/splitter.h"
#include "text/tokenizer_config.h"
#include "text/vocabulary.h"

namespace longspan::text {

struct TokenizerFile;

enum class Decoding : uint8_t { kKeepSpecial, kSkipSpecial };

// Immutable after load, so any number of threads may use one. Movable.
class Tokenizer final {
 public:
  static constexpr size_t kMaxTextBytes = size_t{1} << 30;  // of one encode()

  // Reads tokenizer.json and, where there is one, tokenizer_config.json, whose added tokens win over those of
  // tokenizer.json and may lie beyond them. Throws kNotFound, kInvalid or kUnsupported naming file and field.
  static Tokenizer load(const std::filesystem::path& model_dir);
  // The same from memory; an empty configuration is no configuration.
  static Tokenizer parse(std::string_view tokenizer_json, std::string_view tokenizer_config_json = {});

  // Throws kInvalid for more than kMaxTextBytes, kExhausted at a limit of the pre-tokenizer (see
  // RegexSplitter). Nothing is added in front or behind: a chat template has written all there is to be.
  std::vector<int32_t> encode(std::string_view text, SpecialTokens policy) const;

  // A text that is a whole prompt, special tokens parsed: with the tokens that a TemplateProcessing puts in
  // front (a BOS, in most files that have one) and behind.
  std::vector<int32_t> encode_prompt(std::string_view text) const;

  // Bytes that are not UTF-8 become U+FFFD. An id without a token (padding rows of the model, anything out of
  // range) decodes to nothing.
  std::string decode(std::span<const int32_t> ids, Decoding decoding) const;

  // The raw bytes of a token, which may be a part of a character; empty for an id without a token.
  std::string_view token_bytes(int32_t id) const { return vocabulary_.bytes(id); }
  // The id of an added token or of the vocabulary's token with exactly these bytes.
  std::optional<int32_t> find(std::string_view token) const;
  bool is_special(int32_t id) const;
  bool is_added(int32_t id) const;  // special or not
  // One past the largest id that has a token. Models often have more rows: padding.
  int32_t vocab_size() const { return vocabulary_.size(); }

  std::optional<int32_t> bos_id() const { return bos_id_; }
  // Of tokenizer_config.json. Models name further ones in config.json and generation_config.json.
  std::optional<int32_t> eos_id() const { return eos_id_; }
  const TokenizerConfig& config() const { return config_; }

 private:
  Tokenizer(const TokenizerFile& file, TokenizerConfig config, const std::vector<AddedToken>& added_tokens);
  static Tokenizer build(const TokenizerFile& file, TokenizerConfig config, std::string_view config_name);

  void encode_raw(std::string_view stretch, SpecialTokens policy, Bpe::Scratch& scratch,
                  std::vector<int32_t>& ids) const;
  void encode_normalized(std::string_view stretch, Bpe::Scratch& scratch, std::vector<int32_t>& ids) const;

  TokenizerConfig config_;
  Vocabulary vocabulary_;
  Bpe bpe_;
  bool nfc_;
  std::vector<int32_t> prompt_begin_, prompt_end_;
  std::vector<RegexSplitter> splitters_;
  AddedTokenMatcher raw_tokens_;         // normalized == false
  AddedTokenMatcher normalized_tokens_;  // normalized == true, contents normalised
  std::unordered_map<std::string, int32_t> id_of_added_token_;
  std::vector<bool> is_special_;  // [vocab_size]
  std::vector<bool> is_added_;    // [vocab_size]
  std::optional<int32_t> bos_id_;
  std::optional<int32_t> eos_id_;
};

}  // namespace longspan::text
