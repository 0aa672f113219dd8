#include "text/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "text/utf8.h"

namespace longspan::text {
namespace {

constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr int kAlphabetEnd = 0x100 + 68;  // one past the largest character

constexpr std::array<char32_t, 256> kCharacterOfByte = [] {
  std::array<char32_t, 256> characters{};
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    characters[static_cast<size_t>(byte)] = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
  }
  return characters;
}();

constexpr std::array<int16_t, kAlphabetEnd> kByteOfCharacter = [] {
  std::array<int16_t, kAlphabetEnd> bytes{};
  bytes.fill(-1);
  for (int byte = 0; byte < 256; ++byte) {
    bytes[kCharacterOfByte[static_cast<size_t>(byte)]] = static_cast<int16_t>(byte);
  }
  return bytes;
}();

}  // namespace

std::optional<std::string> bytes_of_spelling(std::string_view spelling) {
  std::string bytes;
  bytes.reserve(spelling.size());
  for (size_t offset = 0; offset < spelling.size();) {
    const CodePoint point = code_point_at(spelling, offset);
    offset += point.size_bytes;
    const int16_t byte = point.value < kByteOfCharacter.size() ? kByteOfCharacter[point.value] : int16_t{-1};
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
  }
  return bytes;
}

std::string spelling_of_bytes(std::string_view bytes) {
  std::string spelling;
  for (const char byte : bytes) append_utf8(kCharacterOfByte[static_cast<uint8_t>(byte)], spelling);
  return spelling;
}

}  // namespace longspan::text
