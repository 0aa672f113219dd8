// A grid of blocks, or a block's place in it.
#pragma once

namespace longspan::ops::device {

struct Grid {
  int x = 1;
  int y = 1;
  int z = 1;
};

}  // namespace longspan::ops::device
