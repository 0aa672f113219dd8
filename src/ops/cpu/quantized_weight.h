// Products of decode rows with weights in few bits, on the codes themselves. All other rows take the dense
// products over panels that the weight unpacks.
#pragma once

#include "ops/cpu/kernels.h"
#include "ops/cpu/packed_weight.h"

namespace longspan::ops::cpu {

// The product of the first num_rows rows, where the weight is quantised and rows are bf16. Returns how many
// rows are done: num_rows or 0. Sums run over each group of K, then over the groups: another order than that
// of the dense products, and without their rounding of the weight to bf16.
Index multiply_codes(const Context& context, const Product& all, Index num_rows);

}  // namespace longspan::ops::cpu
