// Unicode normalisation form C. Tables and composition come from utf8proc.
#pragma once

#include <string>
#include <string_view>

namespace longspan::text {

// True when the text holds no character that NFC could touch, by a quick test that may miss (false is always
// safe).
bool is_certainly_nfc(std::string_view valid_text);

// The text in NFC. O(n log n) for any input: a long run of combining marks is sorted, not bubbled.
std::string to_nfc(std::string_view valid_text);

}  // namespace longspan::text
