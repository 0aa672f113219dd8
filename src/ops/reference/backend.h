// The reference backend: every operation in plain loops and fp32, one thread. Slow for ever; the oracle of
// all others.
#pragma once

#include <memory>

#include "ops/ops.h"

namespace longspan::ops::reference {

std::unique_ptr<Backend> make_backend();

// What the pack functions make of these parts.
PackedBytes packed_bytes(std::span<const WeightPart> parts);

}  // namespace longspan::ops::reference
