#include "core/tensor.h"

#include <gtest/gtest.h>

#include "core/buffer.h"

namespace longspan {
namespace {

TEST(TensorView, SlicesKeepStrides) {
  Buffer buffer(DType::kF32, {4, 6});
  const TensorView whole = buffer.view();
  for (Index i = 0; i < 24; ++i) whole.as<float>()[i] = static_cast<float>(i);
  const TensorView part = whole.rows(1, 2).cols(2, 4);
  EXPECT_EQ(part.shape, (Shape{2, 4}));
  EXPECT_EQ(part.stride(0), 6);
  EXPECT_FALSE(part.is_dense());
  EXPECT_EQ(part.as<float>()[0], 8.0f);
  const TensorView heads = part.split_last(2, 2);
  EXPECT_EQ(heads.shape, (Shape{2, 2, 2}));
  EXPECT_EQ(heads.as<float>()[heads.stride(0) + heads.stride(1)], 16.0f);
}

TEST(TensorView, SaysWhatItIs) {
  const TensorView view(nullptr, DType::kBF16, {3, 64});
  EXPECT_EQ(to_string(view), "bfloat16 [3, 64]");
  EXPECT_EQ(view.size_bytes(), 384u);
}

TEST(TensorView, WrongTypeAborts) {
  Buffer buffer(DType::kF32, {4});
  EXPECT_DEATH(buffer.view().as<bf16>(), "view holds float32, asked for bfloat16");
}

TEST(Buffer, IsZeroedAlignedAndRefusesTheImpossible) {
  Buffer buffer(DType::kBF16, {3, 1 << 20});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
  EXPECT_EQ(static_cast<unsigned char*>(buffer.data())[buffer.size_bytes() - 1], 0);
  EXPECT_THROW(Buffer(size_t{1} << 60), Error);
}

}  // namespace
}  // namespace longspan
