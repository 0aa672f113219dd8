// The reference backend: every operation in plain loops and fp32, one thread. Slow for ever; the oracle of
// all others.
#pragma once

#include <memory>

#include "ops/ops.h"

namespace longspan::ops::reference {

std::unique_ptr<Backend> make_backend();

}  // namespace longspan::ops::reference
