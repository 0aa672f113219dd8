#include "ops/cpu/kernels.h"
