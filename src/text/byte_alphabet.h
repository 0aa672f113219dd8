// The byte alphabet of byte-level BPE: tokenizer.json spells each byte of a token as one printable character
// (GPT-2: the printable Latin-1 bytes stand for themselves, the other 68 for U+0100 and up, in order).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace longspan::text {

// The bytes that a spelling stands for; none when it holds a character outside the alphabet.
std::optional<std::string> bytes_of_spelling(std::string_view spelling);

// The way back.
std::string spelling_of_bytes(std::string_view bytes);

}  // namespace longspan::text
