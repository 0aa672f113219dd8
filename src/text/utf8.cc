#include "text/utf8.h"

#include <cstring>

#include "core/error.h"

namespace longspan::text {
namespace {

enum class SequenceKind : uint8_t { kValid, kInvalid, kTruncated };

// The sequence at the front of a text: a character, a maximal invalid subpart, or a beginning that the end
// cut off.
struct Sequence {
  SequenceKind kind;
  size_t size_bytes;
};

// Unicode table 3-7: the length of a sequence and the range of its second byte follow from the first byte.
Sequence sequence_at(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {SequenceKind::kValid, 1};
  if (lead < 0xC2 || lead > 0xF4) return {SequenceKind::kInvalid, 1};

  const size_t size_bytes = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  const uint8_t second_min = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t second_max = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < size_bytes; ++i) {
    if (i == text.size()) return {SequenceKind::kTruncated, i};
    const bool fits = i == 1 ? second_min <= byte(1) && byte(1) <= second_max : (byte(i) & 0xC0) == 0x80;
    if (!fits) return {SequenceKind::kInvalid, i};
  }
  return {SequenceKind::kValid, size_bytes};
}

// Length of the ASCII run at the front, eight bytes at a time.
size_t ascii_prefix(std::string_view text) {
  size_t size = 0;
  for (uint64_t word; size + sizeof(word) <= text.size(); size += sizeof(word)) {
    std::memcpy(&word, text.data() + size, sizeof(word));
    if (word & 0x8080808080808080u) break;
  }
  while (size < text.size() && static_cast<uint8_t>(text[size]) < 0x80) ++size;
  return size;
}

}  // namespace

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  for (size_t offset = 0; offset < text.size();) {
    offset += ascii_prefix(text.substr(offset));
    if (offset == text.size()) break;
    const Sequence sequence = sequence_at(text.substr(offset));
    if (sequence.kind != SequenceKind::kValid) return offset;
    offset += sequence.size_bytes;
  }
  return std::nullopt;
}

void validate_utf8(std::string_view text, std::string_view what) {
  if (const auto offset = find_invalid_utf8(text)) {
    fail(ErrorKind::kInvalid,
         "{} is not valid UTF-8: got byte 0x{:02x} at offset {}, need a complete character", what,
         static_cast<uint8_t>(text[*offset]), *offset);
  }
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    if (const size_t ascii = ascii_prefix(text)) {
      result += text.substr(0, ascii);
      text.remove_prefix(ascii);
      continue;
    }
    const Sequence sequence = sequence_at(text);
    result +=
        sequence.kind == SequenceKind::kValid ? text.substr(0, sequence.size_bytes) : kReplacementCharacter;
    text.remove_prefix(sequence.size_bytes);
  }
  return result;
}

size_t incomplete_utf8_suffix(std::string_view text) {
  const size_t longest = std::min<size_t>(3, text.size());
  for (size_t size = 1; size <= longest; ++size) {
    const std::string_view suffix = text.substr(text.size() - size);
    if ((static_cast<uint8_t>(suffix[0]) & 0xC0) == 0x80) continue;  // a continuation byte begins nothing
    const Sequence sequence = sequence_at(suffix);
    return sequence.kind == SequenceKind::kTruncated ? size : 0;
  }
  return 0;
}

CodePoint code_point_at(std::string_view valid_text, size_t offset) {
  const auto byte = [&](size_t i) {
    return static_cast<char32_t>(static_cast<uint8_t>(valid_text[offset + i]));
  };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}

void append_utf8(char32_t value, std::string& text) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (value < 0x80) return put(value);
  if (value < 0x800) {
    put(0xC0 | value >> 6);
  } else {
    if (value < 0x10000) {
      put(0xE0 | value >> 12);
    } else {
      put(0xF0 | value >> 18);
      put(0x80 | (value >> 12 & 0x3F));
    }
    put(0x80 | (value >> 6 & 0x3F));
  }
  put(0x80 | (value & 0x3F));
}

}  // namespace longspan::text
