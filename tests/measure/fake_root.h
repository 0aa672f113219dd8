// A machine of a test's own: files below a folder that goes away with it.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace longspan::testing {

class FakeRoot {
 public:
  FakeRoot() {
    std::string name = (std::filesystem::temp_directory_path() / "longspan_root_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~FakeRoot() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;

  const std::filesystem::path& path() const { return path_; }

  // "proc/meminfo"; folders on the way are made.
  void write(const std::string& file, std::string_view text) const {
    std::filesystem::create_directories((path_ / file).parent_path());
    std::ofstream(path_ / file, std::ios::binary) << text;
  }
  // A link as /proc has them: its target is text and may name nothing.
  void link(const std::string& file, const std::string& target) const {
    std::filesystem::create_directories((path_ / file).parent_path());
    std::filesystem::remove(path_ / file);
    std::filesystem::create_symlink(target, path_ / file);
  }
  void allow_running(const std::string& file) const {
    std::filesystem::permissions(path_ / file, std::filesystem::perms::owner_exec,
                                 std::filesystem::perm_options::add);
  }

 private:
  std::filesystem::path path_;
};

}  // namespace longspan::testing
