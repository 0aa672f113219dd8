// What doctor reads of a machine and of its processes, from files that a test wrote.
#include <gtest/gtest.h>

#include "measure/environment.h"
#include "measure/fake_root.h"
#include "measure/processes.h"
#include "measure/system_file.h"

namespace longspan::measure {
namespace {

using testing::FakeRoot;

TEST(SystemFile, ValueAfterTakesTheFirstLineThatBeginsWithTheName) {
  EXPECT_EQ(value_after("MemTotal:   12 kB\nMemFree: 3 kB\n", "MemFree"), "3 kB");
  EXPECT_EQ(value_after("model name\t: Some CPU @ 2\n", "model name"), "Some CPU @ 2");
  EXPECT_FALSE(value_after("MemTotal: 12 kB", "Swap"));
}

TEST(Machine, ReadsProcessorMemoryNodesAndKernel) {
  const FakeRoot root;
  root.write("proc/cpuinfo",
             "processor\t: 0\nmodel name\t: Hygon C86\nflags\t\t: fpu sse avx2 fma f16c\nphysical id\t: 0\n"
             "core id\t\t: 0\n\nprocessor\t: 1\nmodel name\t: Hygon C86\nphysical id\t: 0\ncore id\t\t: 0\n");
  root.write("proc/self/status", "Name:\tlongspan\nCpus_allowed_list:\t0-0\n");
  root.write("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 400 kB\nSwapTotal: 100 kB\nSwapFree: 60 kB\n");
  root.write("sys/devices/system/node/node0/cpulist", "0-1\n");
  root.write("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:  1000 kB\n");
  root.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  root.write("proc/sys/kernel/osrelease", "5.15.0-91\n");
  root.write("etc/os-release", "NAME=\"X\"\nPRETTY_NAME=\"Kylin 10\"\n");
  root.write("proc/vmstat", "nr_free 5\noom_kill 7\n");
  const Machine machine = read_machine(root.path());
  EXPECT_EQ(machine.cpu_model, "Hygon C86");
  EXPECT_EQ(machine.isa, (std::vector<std::string>{"avx2", "fma", "f16c"}));
  EXPECT_EQ(machine.num_cpus, 2);
  EXPECT_EQ(machine.num_cores, 1);
  EXPECT_EQ(machine.num_usable_cpus, 1);
  EXPECT_EQ(machine.memory_bytes, 1000u * 1024);
  EXPECT_EQ(machine.swap_used_bytes, 40u * 1024);
  ASSERT_EQ(machine.nodes.size(), 1u);
  EXPECT_EQ(machine.nodes[0].cpus, "0-1");
  EXPECT_EQ(machine.nodes[0].memory_bytes, 1000u * 1024);
  EXPECT_EQ(machine.huge_pages, "madvise");
  EXPECT_EQ(machine.kernel, "5.15.0-91");
  EXPECT_EQ(machine.system, "Kylin 10");
  EXPECT_EQ(machine.oom_kills_since_boot, 7);
}

TEST(Machine, AnEmptyRootIsAMachineOfWhichNothingIsKnown) {
  const FakeRoot root;
  const Environment environment = read_environment(AskDevices::kNo, root.path());
  EXPECT_EQ(environment.machine.num_cpus, 0);
  EXPECT_EQ(environment.group.version, 0);
  EXPECT_EQ(environment.program.pid, 0);
}

TEST(ControlGroup, VersionTwoTakesTheTightestLimitUpToTheRoot) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/outer/inner\n");
  root.write("sys/fs/cgroup/outer/memory.max", "1000\n");
  root.write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  root.write("sys/fs/cgroup/outer/inner/memory.current", "300\n");
  root.write("sys/fs/cgroup/outer/inner/memory.events", "low 0\nhigh 0\nmax 9\noom 4\noom_kill 2\n");
  root.write("sys/fs/cgroup/outer/inner/cpu.max", "150000 100000\n");
  const ControlGroup group = read_control_group(root.path());
  EXPECT_EQ(group.version, 2);
  EXPECT_EQ(group.path, "/outer/inner");
  EXPECT_EQ(group.memory_limit_bytes, 1000u);
  EXPECT_EQ(group.memory_bytes, 300u);
  EXPECT_EQ(group.oom_events, 4);
  EXPECT_EQ(group.oom_kills, 2);
  EXPECT_DOUBLE_EQ(*group.cpu_limit, 1.5);
}

TEST(ControlGroup, VersionOneWritesNoLimitAsAHugeNumber) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "4:memory:/box\n2:cpu,cpuacct:/box\n0::/box\n");
  root.write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "9223372036854771712\n");
  root.write("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "300\n");
  root.write("sys/fs/cgroup/memory/box/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
  root.write("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "-1\n");
  root.write("sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n");
  const ControlGroup group = read_control_group(root.path());
  EXPECT_EQ(group.version, 1);
  EXPECT_FALSE(group.memory_limit_bytes);
  EXPECT_FALSE(group.cpu_limit);
  EXPECT_EQ(group.oom_kills, 3);
}

TEST(ControlGroup, InsideAContainerTheMountIsTheGroup) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/docker/abc\n");  // a path of the host's
  root.write("sys/fs/cgroup/memory.max", "5000\n");
  EXPECT_EQ(read_control_group(root.path()).memory_limit_bytes, 5000u);
}

TEST(Program, SaysWhatRunsAndWhatLiesAtItsPath) {
  const FakeRoot root;
  root.write("opt/longspan (deleted)", "old build");  // what /proc opens
  root.write("opt/longspan", "new build");
  root.write("usr/lib/libdnnl.so.2.6", "");
  root.link("usr/lib/libdnnl.so.2", "libdnnl.so.2.6");
  root.write("proc/42/stat", "42 (longspan) S 1\n");
  root.link("proc/42/exe", (root.path() / "opt/longspan (deleted)").string());
  root.write("proc/42/maps",
             "1-2 r--p 0 08:01 1 /usr/lib/libdnnl.so.2\n2-3 r-xp 0 08:01 1 /usr/lib/libdnnl.so.2\n"
             "3-4 r-xp 0 08:01 2 /usr/lib/libgone.so.1 (deleted)\n4-5 r-xp 0 00:00 0 [vdso]\n"
             "5-6 rw-p 0 08:01 3 /usr/lib/libdata.so.1\n");
  const Program program = read_program(root.path(), "42");
  EXPECT_EQ(program.pid, 42);
  EXPECT_TRUE(program.replaced);
  EXPECT_EQ(program.path, (root.path() / "opt/longspan").string());
  EXPECT_EQ(program.hash, build_hash(root.path() / "opt/longspan (deleted)"));
  EXPECT_NE(program.hash, build_hash(root.path() / "opt/longspan"));
  ASSERT_EQ(program.libraries.size(), 2u);
  EXPECT_EQ(program.libraries[0].version, "2.6");
  EXPECT_FALSE(program.libraries[0].replaced);
  EXPECT_EQ(program.libraries[1].path, "/usr/lib/libgone.so.1");
  EXPECT_TRUE(program.libraries[1].replaced);
}

TEST(Program, ThisOneHasABuildIdOfTheLinker) {
  const Program program = read_program("/");
  EXPECT_GT(program.pid, 0);
  EXPECT_EQ(program.hash, build_hash(program.path));
  EXPECT_EQ(program.hash.find_first_not_of("0123456789abcdef"), std::string::npos) << program.hash;
}

TEST(Processes, FindsWhoHoldsACardAndWhoListens) {
  const FakeRoot root;
  root.link("proc/7/fd/3", "/dev/kfd");
  root.link("proc/7/fd/4", "/dev/dri/renderD128");
  root.link("proc/7/fd/5", "/dev/kfd");
  root.write("proc/7/cmdline", std::string("hipprof\0--trace\0", 16));
  root.link("proc/9/fd/6", "socket:[555]");
  root.write("proc/9/cmdline", std::string("longspan\0serve\0", 15));
  root.link("proc/9/fd/7", "/dev/nvidiactl");  // the driver's door, no card
  root.write("proc/net/tcp",
             "  sl  local_address rem_address   st\n"
             "   0: 0100007F:1F40 00000000:0000 0A 0:0 00:0 00000000 0 0 555 1 0\n"
             "   1: 0100007F:1F41 0100007F:1F40 01 0:0 00:0 00000000 0 0 556 1 0\n");
  const std::vector<DeviceHolder> holders = device_holders(root.path());
  ASSERT_EQ(holders.size(), 2u);
  EXPECT_EQ(holders[0].device, "/dev/dri/renderD128");
  EXPECT_EQ(holders[1].device, "/dev/kfd");
  EXPECT_EQ(holders[1].process.command, "hipprof --trace");
  const auto listener = listener_on(root.path(), 8000);
  ASSERT_TRUE(listener);
  EXPECT_EQ(listener->process.pid, 9);
  EXPECT_FALSE(listener_on(root.path(), 8001)) << "connected, not listening";
}

}  // namespace
}  // namespace longspan::measure
