// Each rule is shown twice: it refuses a small wrong tree, and this repository keeps it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "structure/rules.h"
#include "structure/source_tree.h"

namespace longspan::structure {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const fs::path kRepository = LONGSPAN_SOURCE_DIR;

// A throw-away tree of files.
class Structure : public ::testing::Test {
 protected:
  Structure()
      : root_(fs::path(::testing::TempDir()) /
              ("structure-" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()))) {
    fs::remove_all(root_);
  }
  ~Structure() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  fs::path root_;
};

TEST_F(Structure, includes_downwards_are_accepted) {
  write("src/core/a.h", "#include <vector>\n");
  write("src/ops/a.cc", "#include \"ops/a.h\"\n#include \"core/a.h\"\n#include \"ops/device/launch.h\"\n");
  write("src/gateway/a.cc", "#include \"server/http_client.h\"\n");
  EXPECT_THAT(include_table(root_), IsEmpty());
}

TEST_F(Structure, an_upward_include_is_refused) {
  write("src/core/a.h", "#pragma once\n#include \"io/safetensors.h\"\n");
  EXPECT_THAT(include_table(root_), ElementsAre("src/core/a.h:2: core may not include \"io/safetensors.h\""));
}

TEST_F(Structure, a_sideways_include_is_refused) {
  write("src/text/a.cc", "#include \"io/json.h\"\n");
  write("src/engine/a.cc", "#include \"text/tokenizer.h\"\n");
  EXPECT_THAT(include_table(root_), SizeIs(2));
}

TEST_F(Structure, the_gateway_sees_http_files_of_the_server_and_no_engine) {
  write("src/gateway/a.cc",
        "#include \"engine/engine.h\"\n#include \"server/routes.h\"\n#include \"server/http.h\"\n");
  EXPECT_THAT(include_table(root_), ElementsAre(HasSubstr("engine/engine.h"), HasSubstr("server/routes.h")));
}

TEST_F(Structure, device_code_sees_core_and_the_list_of_operations) {
  write("src/ops/device/a.cc",
        "#include \"core/dtype.h\"\n#include \"ops/ops.h\"\n#include \"ops/cpu/kernels.h\"\n");
  EXPECT_THAT(include_table(root_),
              ElementsAre(HasSubstr("ops/device may not include \"ops/cpu/kernels.h\"")));
}

TEST_F(Structure, an_unknown_room_and_an_unrooted_include_are_refused) {
  write("src/shed/a.cc", "");
  write("src/core/b.cc", "#include \"b.h\"\n");
  EXPECT_THAT(include_table(root_), SizeIs(2));
}

TEST_F(Structure, the_repository_keeps_the_include_table) {
  EXPECT_THAT(include_table(kRepository), IsEmpty());
}

TEST_F(Structure, json_in_the_engine_is_refused) {
  write("src/engine/a.cc", "#include <nlohmann/json.hpp>\n");
  write("src/server/a.cc", "#include <nlohmann/json.hpp>\n");
  EXPECT_THAT(json_borders(root_),
              ElementsAre("src/engine/a.cc:1: engine may not see JSON (nlohmann/json.hpp)"));
}

TEST_F(Structure, the_repository_keeps_json_at_its_borders) {
  EXPECT_THAT(json_borders(kRepository), IsEmpty());
}

TEST_F(Structure, a_vendor_conditional_is_refused_outside_its_files) {
  write("src/ops/a.cc", "#if defined(__AVX2__)\n#endif\n#ifdef NDEBUG\n#endif\n");
  write("src/ops/device/vendor.h", "#ifdef __HIPCC__\n#endif\n");
  EXPECT_THAT(vendor_conditionals(root_), ElementsAre(HasSubstr("src/ops/a.cc:1:")));
}

TEST_F(Structure, the_repository_keeps_vendor_conditionals_in_their_files) {
  EXPECT_THAT(vendor_conditionals(kRepository), IsEmpty());
}

TEST_F(Structure, a_magic_warp_number_is_refused) {
  write("src/ops/device/a.cuh",
        "int lane = thread & 31;\nint tile = 32;  // lane % 32\nauto m = 0xffffffff;\n");
  EXPECT_THAT(magic_warp_numbers(root_), ElementsAre(HasSubstr("a.cuh:1:"), HasSubstr("a.cuh:3:")));
}

TEST_F(Structure, the_repository_has_no_magic_warp_number) {
  EXPECT_THAT(magic_warp_numbers(kRepository), IsEmpty());
}

TEST_F(Structure, a_file_that_grew_too_long_is_refused) {
  std::string lines;
  for (int i = 0; i < kMaxFileLines; ++i) lines += "\n";
  write("src/core/long_enough.cc", lines);
  write("src/core/too_long.cc", lines + "\n");
  EXPECT_THAT(long_files(root_), ElementsAre("src/core/too_long.cc: got 701 lines, need at most 700"));
}

TEST_F(Structure, the_repository_has_no_file_that_grew_too_long) {
  EXPECT_THAT(long_files(kRepository), IsEmpty());
}

TEST_F(Structure, a_source_that_no_cmake_file_names_is_refused) {
  write("src/ops/CMakeLists.txt", "longspan_room(ops SOURCES a.cc $<IF:1,cpu/b.cc,cpu/c.cc>)\n");
  write("src/ops/a.cc", "");
  write("src/ops/cpu/b.cc", "");
  write("src/ops/cpu/a.cc", "");
  EXPECT_THAT(unlisted_sources(root_), ElementsAre(HasSubstr("src/ops/cpu/a.cc")));
}

TEST_F(Structure, the_repository_builds_every_source) {
  EXPECT_THAT(unlisted_sources(kRepository), IsEmpty());
}

TEST_F(Structure, a_path_of_the_writers_machine_is_refused) {
  const std::string folder = std::string("/ho") + "me/someone/models";
  write("docs/a.md", "run it\nlongspan serve --model " + folder + "\n");
  write("tests/fixtures/a.md", folder);
  EXPECT_THAT(machine_paths(root_, {"docs/a.md", "tests/fixtures/a.md"}),
              ElementsAre(HasSubstr("docs/a.md:2:")));
}

TEST_F(Structure, the_repository_names_no_path_of_a_machine) {
  const auto tracked = tracked_files(kRepository);
  if (!tracked) GTEST_SKIP() << "no Git work tree";
  EXPECT_THAT(machine_paths(kRepository, *tracked), IsEmpty());
}

TEST_F(Structure, a_tree_that_grew_too_large_is_refused) {
  write("big", "");
  fs::resize_file(root_ / "big", kMaxTreeBytes + 1);
  EXPECT_THAT(large_tree(root_, {"big"}), SizeIs(1));
}

TEST_F(Structure, the_repository_stays_small) {
  const auto tracked = tracked_files(kRepository);
  if (!tracked) GTEST_SKIP() << "no Git work tree";
  EXPECT_THAT(large_tree(kRepository, *tracked), IsEmpty());
}

}  // namespace
}  // namespace longspan::structure
