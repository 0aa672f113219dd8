#include "ops/device/kernels.h"
