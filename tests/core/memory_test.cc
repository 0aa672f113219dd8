// Buffers of foreign memory, and Memory: the host's way and a device's.
#include "core/memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

namespace longspan {
namespace {

int num_released = 0;
size_t released_bytes = 0;

void release(void* data, size_t size_bytes) {
  ++num_released;
  released_bytes = size_bytes;
  std::free(data);
}

// A device whose memory happens to be the host's.
class FakeDevice final : public Memory {
 public:
  bool is_host() const override { return false; }
  Buffer allocate(DType dtype, Shape shape) override {
    const size_t bytes = static_cast<size_t>(shape.num_elements()) * dtype_size(dtype);
    return Buffer(std::malloc(bytes), dtype, shape, release);
  }
};

TEST(Buffer, FreesForeignMemoryOnceAndByItsOwnFunction) {
  num_released = 0;
  {
    Buffer buffer = FakeDevice().allocate(DType::kF32, {3, 5});
    EXPECT_EQ(buffer.size_bytes(), 60u);
    EXPECT_EQ(to_string(buffer.view()), "float32 [3, 5]");
    const Buffer moved = std::move(buffer);
    EXPECT_EQ(num_released, 0);
  }
  EXPECT_EQ(num_released, 1);
  EXPECT_EQ(released_bytes, 60u);
}

TEST(Memory, TheHostsBufferStaysWhereItIs) {
  Memory host;
  Buffer buffer(DType::kI32, {4});
  const void* data = buffer.data();
  EXPECT_EQ(moved_to(host, std::move(buffer)).data(), data);
}

TEST(Memory, ADevicesBufferIsACopy) {
  FakeDevice device;
  Buffer buffer(DType::kI32, {4});
  for (int i = 0; i < 4; ++i) buffer.view().as<int32_t>()[i] = i;
  const Buffer moved = moved_to(device, std::move(buffer));
  std::vector<int32_t> back(4);
  device.download(back.data(), moved.data(), moved.size_bytes());
  EXPECT_EQ(back, (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(moved_to(device, Buffer()).data(), nullptr);  // what is not there stays away
}

TEST(Memory, CopiesAndZeroes) {
  Memory host;
  const Buffer a = host.allocate(DType::kI32, {4}), b = host.allocate(DType::kI32, {4});
  const std::vector<int32_t> values{5, 6, 7, 8};
  host.upload(a.data(), values.data(), a.size_bytes());
  host.copy(b.data(), a.data(), b.size_bytes());
  EXPECT_EQ(b.view().as<int32_t>()[3], 8);
  host.zero(b.data(), 8);
  EXPECT_EQ(b.view().as<int32_t>()[1], 0);
  EXPECT_EQ(b.view().as<int32_t>()[2], 7);
}

}  // namespace
}  // namespace longspan
