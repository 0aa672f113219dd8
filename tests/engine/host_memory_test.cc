// How much memory is left, on machines that are a few small files.
#include "engine/host_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace longspan::engine {
namespace {

namespace fs = std::filesystem;

class HostMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("longspan_host_memory_" + std::to_string(::getpid()));
    fs::remove_all(root_);
    write("proc/meminfo", "MemTotal:       16 kB\nMemAvailable:    8 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }
  void write(const fs::path& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  fs::path root_;
};

TEST_F(HostMemory, TheMachinesWhereNoCgroupLimits) {
  EXPECT_EQ(available_memory_bytes(root_), 8192u);
  write("sys/fs/cgroup/memory.max", "max\n");
  write("sys/fs/cgroup/memory.current", "100\n");
  EXPECT_EQ(available_memory_bytes(root_), 8192u);
}

TEST_F(HostMemory, Version2CountsPageCacheThatComesBackAsFree) {
  write("sys/fs/cgroup/memory.max", "5000\n");
  write("sys/fs/cgroup/memory.current", "3000\n");
  write("sys/fs/cgroup/memory.stat", "anon 1\ninactive_file 500\n");
  EXPECT_EQ(available_memory_bytes(root_), 2500u);
}

TEST_F(HostMemory, Version1) {
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "5000\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "3000\n");
  write("sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 400\n");
  EXPECT_EQ(available_memory_bytes(root_), 2400u);
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(available_memory_bytes(root_), 8192u) << "its way to say: no limit";
}

// A service of a machine, not in a container: the limits of its own cgroup and of the slices above it.
TEST_F(HostMemory, LimitsOfTheOwnCgroupAndThoseAbove) {
  write("proc/self/cgroup", "0::/system.slice/longspan.service\n");
  write("sys/fs/cgroup/system.slice/memory.max", "4000\n");
  write("sys/fs/cgroup/system.slice/memory.current", "1000\n");
  EXPECT_EQ(available_memory_bytes(root_), 3000u);
  write("sys/fs/cgroup/system.slice/longspan.service/memory.max", "900\n");
  write("sys/fs/cgroup/system.slice/longspan.service/memory.current", "1000\n");
  EXPECT_EQ(available_memory_bytes(root_), 0u) << "over its limit already";
}

TEST_F(HostMemory, AContainerThatDoesNotSeeItsOwnPath) {
  write("proc/self/cgroup", "12:cpu:/x\n9:memory:/docker/0123\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "2000\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "500\n");
  EXPECT_EQ(available_memory_bytes(root_), 1500u);
}

}  // namespace
}  // namespace longspan::engine
