// A trial of a library's prompt attention: whether its rows may be used.
#pragma once

#include <functional>
#include <string>

#include "ops/device/backend.h"

namespace longspan::ops::device {

// Puts one call to the device; empty, or why it cannot.
using PrefillCall = std::function<std::string(const Attention& args)>;

// Empty when, with 129 rows behind a prefix of all but 64 tokens of a page, the call gives what the formula
// gives in double precision but for rounding, whatever lies behind a sequence's end in its pages; and the
// same bits again, cut where a prompt may be cut, with its pages elsewhere, and behind rows and beside
// sequences that are not its own. Else which of these fails.
std::string fault_of(Device& device, const PrefillShape& shape, const PrefillCall& call);

}  // namespace longspan::ops::device
